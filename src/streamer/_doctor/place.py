"""What a URI allows: its server, the way to it, credentials, permissions, versions, checksums and speed.

Each step is done as a load does it, and nothing is written. If a step fails, the steps that need it are left out.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from streamer._checkpoint_headers import open_checkpoint, pinned
from streamer._doctor.findings import Finding, State, finding_of, in_time, probed
from streamer._doctor.machine import mount_finding
from streamer._doctor.speed import Speed, speeds
from streamer._locate_shards import opened_store
from streamer._pull.listing import files_below
from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.answer_values import clock_offset_s
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.proxy import environment_proxy
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import EncryptionKeyError, StreamerError
from streamer.core.folders.paths import disk_name
from streamer.core.options import machine
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import counted, size_text
from streamer.core.request.request import Request
from streamer.core.secrets.environment import variable
from streamer.core.shards.shards import sized, source_object
from streamer.core.store.digests import ObjectDigest
from streamer.core.store.names import scheme_of
from streamer.core.store.parallel import AnswerTimeoutError
from streamer.core.store.proxies import place_of
from streamer.core.store.sources import FileSource, HttpSource, ObjectInfo, PythonSource, Store
from streamer.core.verification.by_store import digests_of

SLOW_FIRST_BYTE_S = 0.5  # object stores answer in a tenth of a second
SLOW_ROUND_TRIP_S = 0.1
WRONG_CLOCK_S = 300.0  # Azure and Google refuse signatures of a quarter of an hour, tokens of five minutes
TRIES = 3
# Where a login may come from: storage options, variables, files; the first that is there counts. A file is below the
# folder that a variable names, or another one.
LOGINS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str, str], ...]]] = {
    "s3": (
        ("anon", "key", "profile"),
        ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", ""), ("AWS_CONFIG_FILE", "~/.aws/config", "")),
    ),
    "gs": (
        ("token",),
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        (("CLOUDSDK_CONFIG", "~/.config/gcloud", "application_default_credentials.json"),),
    ),
    "az": (
        ("connection_string", "credential", "account_key", "sas_token"),
        (*(f"AZURE_STORAGE_{name}" for name in ("CONNECTION_STRING", "ACCOUNT_KEY", "SAS_TOKEN")), "AZURE_CLIENT_ID"),
        (),
    ),
    "hf": (
        ("token",),
        ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        (("HF_TOKEN_PATH", "", ""), ("HF_HOME", "~/.cache/huggingface", "token")),
    ),
}
_OTHER_NAMES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


@dataclass
class Examined:
    """What was found out about a URI."""

    findings: list[Finding]
    speed: Speed | None = None  # of a load's reads
    objects: Sequence[SourceObject] = ()  # the largest files


Tell: TypeAlias = Callable[[Finding], None]


def examine(uri: str, options: Mapping[str, Any] | None, *, deadline_s: float, seconds: float, tell: Tell) -> Examined:
    """Examine a URI; each probe has the deadline, and each speed is measured for that many seconds."""
    with ExitStack() as stack:
        return _Examination(uri, options or {}, deadline_s, stack, tell).run(seconds)


class _Examination:
    def __init__(self, uri: str, options: Mapping[str, Any], deadline_s: float, stack: ExitStack, tell: Tell) -> None:
        self._uri, self._options, self._deadline_s, self._stack, self._tell = uri, options, deadline_s, stack, tell
        self._scheme = _OTHER_NAMES.get(scheme_of(uri), scheme_of(uri))
        self._found = Examined([])

    def run(self, seconds: float) -> Examined:
        settings = self._settings()
        store = self._tried("place", lambda: self._opened(settings))
        if store is None:
            return self._found
        self._probe("mount", lambda: [mount_finding(disk_name(store.root))] if self._scheme == "file" else [])
        server = _server_url(store)
        if server and self._scheme != "file":
            self._probe("server", lambda: _network(server, self._deadline_s))
        self._note(_login(self._scheme, self._options))
        infos = self._tried("access", lambda: self._listed(store, settings))
        largest = sorted(infos or [], key=lambda each: each.size_bytes or 0)[-4:]
        source = self._tried("access", lambda: source_object(store, largest[-1])) if largest else None
        http = source.source if source is not None and isinstance(source.source, HttpSource) else None
        if http is not None or (server and server.startswith("http")):
            probed_source = http or HttpSource(f"{server}/")
            self._probe("clock", lambda: _answers(probed_source, settings, is_known=http is not None))
        if source is None:
            return self._found
        self._probe("ranges", lambda: _bytes_of(store, largest[-1], source))
        if not any(each.state == "broken" for each in self._found.findings):
            self._probe("checkpoint", self._checkpoint, more_s=self._deadline_s)
        self._note(_fits(infos or []))
        if seconds:
            self._measure(store, largest, seconds)
        return self._found

    def _settings(self) -> Settings:
        wait_s = self._deadline_s / 2  # so that an error that says more comes before the deadline of the probe
        waits = dict.fromkeys(("connect_timeout_s", "first_byte_timeout_s", "block_deadline_s"), wait_s)
        return resolve(Options(**waits, cache_dir=""))  # type: ignore[arg-type]

    def _opened(self, settings: Settings) -> Store:
        request = Request(uri=self._uri, storage_options=self._options or None)
        (uri,) = pinned(request, settings).uris
        return self._stack.enter_context(opened_store(uri, self._options or None, None, settings))

    def _listed(self, store: Store, settings: Settings) -> list[ObjectInfo]:
        began = time.perf_counter()
        listing = files_below(store, self._uri, settings)
        infos = sized(store, list(listing.files.values()))
        took = f"{counted(len(infos), 'file')} in {time.perf_counter() - began:.2f} s"
        why = "a folder without an index is found by its listing, and a pull copies what is listed"
        advice = "Allow s3:ListBucket (or the like) on the bucket, or name the file or the index"
        state: State = "ok" if listing.is_whole else "slow"
        found = took if listing.is_whole else f"listing is denied; files of usual names are read: {took}"
        self._note(Finding("permissions", state, found, why, advice))
        return infos

    def _checkpoint(self) -> list[Finding]:
        """Open the checkpoint: its index, and the headers of its shards."""
        options = Options(cache_dir="", block_deadline_s=self._deadline_s)
        request = Request(uri=self._uri, storage_options=self._options or None, options=options)
        why, began = "a load reads the index and every header before the first tensor", time.perf_counter()
        try:
            opened = open_checkpoint(request, any_format=True)
        except EncryptionKeyError as error:
            return [Finding("checkpoint", "unknown", error.message, why, "streamer check --key-file reads its headers")]
        count, shards = len(opened.catalog.tensors), counted(len(opened.infos), "shard")
        took = f"{counted(count, 'tensor')} in {shards} of {opened.format_name}"
        return [Finding("checkpoint", "ok", f"{took}, headers read in {time.perf_counter() - began:.2f} s", why)]

    def _measure(self, store: Store, largest: Sequence[ObjectInfo], seconds: float) -> None:
        objects = self._tried("speed", lambda: [source_object(store, each) for each in reversed(largest)])
        if objects:
            self._found.objects = objects

            def probe() -> list[Finding]:
                findings, self._found.speed = speeds(
                    objects, seconds, self._deadline_s / 3, has_network=self._scheme != "file"
                )
                return findings

            self._probe("speed", probe, more_s=4 * seconds)

    def _note(self, finding: Finding) -> None:
        is_known = any((each.name, each.state) == (finding.name, "broken") for each in self._found.findings)
        if is_known and finding.state == "broken":
            return
        self._found.findings.append(finding)
        self._tell(finding)

    def _probe(
        self, name: str, probe: Callable[[], Sequence[Finding] | Iterator[Finding]], more_s: float = 0.0
    ) -> None:
        for finding in probed(name, probe, self._deadline_s + more_s):
            self._note(finding)

    def _tried(self, name: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call; None after an error or the deadline, which become a line."""
        try:
            return in_time(call, 2 * self._deadline_s)
        except StreamerError as error:
            self._note(finding_of(error))
        except AnswerTimeoutError:
            advice = "See whether it hangs, or raise --timeout"
            self._note(Finding("server", "broken", f"no answer in {2 * self._deadline_s:g} s", advice=advice))
        except OSError as error:
            self._note(Finding(name, "broken", str(error)))
        return None


def _server_url(store: Store) -> str | None:
    server = str(getattr(store, "server", ""))
    if server.startswith("s3://"):
        return "https://s3.amazonaws.com"
    return server.rstrip("/") if server.startswith(("http://", "https://", "nfs://")) else None


def _network(server: str, deadline_s: float) -> Iterator[Finding]:
    """Look up the server, or the proxy on the way to it, and connect."""
    proxy = environment_proxy(server) if server.startswith("http") else None
    target = urlsplit(proxy or server)
    name, kind = ("proxy", f"the proxy {place_of(proxy)}") if proxy else ("server", target.netloc.rpartition("@")[2])
    port = target.port or {"http": 80, "https": 443, "nfs": 2049}.get(target.scheme, 80)
    try:
        found = socket.getaddrinfo(target.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        line = "proxy" if proxy else "names"
        advice = "Check the spelling, /etc/resolv.conf and the cluster's DNS"
        yield Finding(line, "broken", f"{kind} cannot be looked up: {error.strerror}", advice=advice)
        return
    addresses = {each[4][0] for each in found}
    yield Finding("names", "ok", f"{target.hostname} has {len(addresses)} address{'es' if len(addresses) > 1 else ''}")
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        try:
            socket.create_connection((target.hostname, port), deadline_s / TRIES / 2).close()
        except OSError as error:
            advice = "Check the host, the port, and firewalls on the way"
            if proxy:
                advice = "Check that the proxy runs, or name the server's host in NO_PROXY"
            yield Finding(name, "broken", f"no connection to {kind}: {error.strerror or error}", advice=advice)
            return
        times.append(time.perf_counter() - began)
    state: State = "ok" if min(times) < SLOW_ROUND_TRIP_S else "slow"
    why = "each new connection, and the first byte of each request, waits for it"
    advice = "Use a bucket in the same region"
    yield Finding("round trip", state, f"{1000 * min(times):.2f} ms to {kind}", why, advice)


def _answers(source: HttpSource, settings: Settings, *, is_known: bool) -> Iterator[Finding]:
    """Request a byte: the server's clock, the time to the first byte, and whether ranges are answered."""
    one = replace(source, headers={**source.headers, "Range": "bytes=0-0"}) if is_known else source
    times: list[float] = []
    answer: Response | None = None
    for _ in range(TRIES if is_known else 1):
        began = time.perf_counter()
        try:
            answer = send(one, answer_times(settings.limits))
        except StreamerError:
            if is_known:
                raise
            return  # an error of the access has said why
        times.append(time.perf_counter() - began)
        answer.close()
    assert answer is not None
    offset_s = clock_offset_s(answer.headers.get("date"), time.time())
    if offset_s is not None:
        state: State = "ok" if abs(offset_s) < WRONG_CLOCK_S else "broken"
        found = "as the server's" if not offset_s else f"{abs(offset_s):.0f} s {'behind' if offset_s > 0 else 'ahead'}"
        yield Finding("clock", state, found, "signatures and tokens hold for minutes", "Set it: chronyc makestep")
    if not is_known:
        return
    if answer.status >= 400:
        name, advice = "server", "Ask who runs it"
        if answer.status in (401, 403):
            name, advice = "permissions", "Allow reads (s3:GetObject or the like): listing alone is not enough"
        found = f"a read of one byte is answered with {answer.status}"
        yield Finding(name, "broken", found, "a load does the same", advice)
        return
    state = "ok" if min(times) < SLOW_FIRST_BYTE_S else "slow"
    why = "a load begins with some requests that wait for each other"
    advice = "Use a bucket in the same region, or ask who runs the store"
    yield Finding("first byte", state, f"{1000 * min(times):.1f} ms", why, advice)
    if answer.status != 206:
        why = "only with them can several requests read one file"
        advice = "Allow byte ranges on the server, and see that no proxy removes them"
        yield Finding("ranges", "broken", f"a request for one byte is answered with {answer.status}", why, advice)


def _bytes_of(store: Store, info: ObjectInfo, source: SourceObject) -> Iterator[Finding]:
    """Say how the bytes are read, and what tells their versions apart and checks them."""
    own = source.source
    if isinstance(own, PythonSource):
        found, advice = (
            own.remark or "this storage has no native reader",
            "docs/backends.md says what is read natively",
        )
        yield Finding("ranges", "slow", f"through Python: {found}", "", advice)
    else:
        kind = {HttpSource: "by ranges", FileSource: "from a mounted file"}.get(type(own), "by the engine")
        yield Finding("ranges", "ok", f"read {kind}")
    is_strong = info.version is not None and not info.is_weak
    why = "a file that is replaced during a load is noticed by its version"
    found = "each file has one" if is_strong else "the storage reports none" if info.version is None else "weak ones"
    yield Finding("versions", "ok" if is_strong else "slow", found, why, "Let the server send ETags")
    (digest,) = digests_of(store, [info])
    answer = own.answer_checksum if isinstance(own, HttpSource) else None
    offered = digest.algorithm if isinstance(digest, ObjectDigest) else answer.algorithm if answer else ""
    found = offered or getattr(digest, "reason", "none")
    why = 'verify="auto" compares with them'
    yield Finding("checksums", "ok", found, why if offered else "a manifest can take their place")
    if isinstance(own, HttpSource) and own.expires_at_s is not None:
        yield Finding("expiry", "ok", f"in {(own.expires_at_s - time.time()) / 60:.0f} minutes; renewed before")


def _login(scheme: str, options: Mapping[str, Any]) -> Finding:
    option_names, variables, files = LOGINS.get(scheme, ((), (), ()))
    for name in option_names:
        if options.get(name) or (name == "token" and options.get(name) is False):
            return Finding("login", "ok", f"from storage_options: {name}")
    paths = [os.path.join(os.path.expanduser(variable(name) or usual), file).rstrip("/") for name, usual, file in files]
    for each in (*filter(variable, variables), *filter(os.path.isfile, paths)):
        return Finding("login", "ok", f"from {each}")
    if not option_names:
        return Finding("login", "ok", "none is needed" if scheme == "file" else "of the URL or the storage options")
    if options.get("anon"):
        return Finding("login", "ok", "from storage_options: anon")
    what = "no option, variable or file has one"
    return Finding("login", "unknown", "from the machine's own identity, or none", what)


def _fits(infos: Sequence[ObjectInfo]) -> Finding:
    sizes = [info.size_bytes or 0 for info in infos]
    limit, free = machine.memory_bytes(), machine.free_bytes()
    found = f"{size_text(sum(sizes))} in {counted(len(sizes), 'file')}, the largest {size_text(max(sizes))}"
    state: State = "ok"
    if max(sizes) > limit:
        state, found = "broken", f"{found}; the largest file is larger than all memory, {size_text(limit)}"
    elif sum(sizes) > free:
        state, found = "slow", f"{found}; more than the memory that is free, {size_text(free)}"
    advice = "Raise the memory limit of the container, load to a device, or load parts (names=, slices=)"
    return Finding("size", state, found, "a load keeps the tensors in memory", advice)
