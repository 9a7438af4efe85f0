"""The report of a load: its figures and remarks, and how tensors were copied to their devices."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streamer import _native
from streamer.core.bounds import bound_by, bounds_text
from streamer.core.outages.counters import EarlierCounters
from streamer.core.quoting import counted, printable, size_text
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource, Source

_READERS: dict[type[Source], str] = {
    FileSource: "file",
    HttpSource: "http",
    NfsSource: "nfs",
    PythonSource: "python",
}
# Fields with the names of the engine's counters. Of two reads, `_SUMMED` are added and `_HIGHEST` keep the maximum.
_COUNTERS = (
    "retries",
    "rereads",
    "cached_bytes",
    "hedges",
    "credential_refreshes",
    "outages",
    "probes",
    "peak_held_bytes",
    "peak_pinned_bytes",
)
_SUMMED = (
    "bytes_read",
    "cached_bytes",
    "shared_bytes",
    "requests",
    "retries",
    "outages",
    "waited_s",
    "probes",
    "hedges",
    "credential_refreshes",
)
_HIGHEST = ("peak_held_bytes", "peak_pinned_bytes")


@dataclass(frozen=True)
class ObjectCheck:
    """Whether the bytes of one object were compared with a digest.

    Attributes:
        uri: The URI of the object, without secrets.
        verified_by: The digest that matched (``"manifest (crc32c)"``, ``"crc64nvme"``, ``"sha256"``;
            ``"crc64nvme of each answer"``: a checksum in each response of the server), or None.
        remark: Why nothing was compared; None if a digest matched.
    """

    uri: str
    verified_by: str | None
    remark: str | None


@dataclass(frozen=True)
class LoadReport:
    """The figures of one load, measured during the load.

    Attributes:
        uri: The URI that was loaded, without secrets.
        tensors: Number of tensors delivered.
        bytes: Bytes of these tensors; for a part that is cut out of a range in memory, the bytes of the range.
        bytes_read: Bytes that this process requested from the storage for these tensors, including gaps between them,
            without headers.
        shared_bytes: Bytes of these tensors that other processes of this machine read, with ``share="node"``.
        seconds: From the call to the last tensor.
        requests: Range requests sent for headers and tensors, including retries, without the requests that located
            the checkpoint; 0 without HTTP.
        retries: Blocks that were retried.
        outages: How often the load waited for a server that failed as a whole, or throttled many requests.
        waited_s: Seconds of waiting in outages, the sum over all servers.
        probes: Requests sent during outages to test whether the server is back.
        rereads: Tensors read a second time because their digest, or that of their object, mismatched the first time.
        cached_bytes: Bytes of these tensors that were read from the cache of this machine (`Options.cache_dir`).
        peer_bytes: Bytes of these tensors that came from other machines (`Options.peers`), by their addresses.
        hedges: Duplicates sent for slow requests.
        credential_refreshes: How often an expiring signature was renewed.
        peak_held_bytes: Peak of the bytes that were read or being read, and not yet passed to the consumer.
        device_path: How tensors reached their accelerator: ``"ring"`` through the engine's pinned memory, ``"torch"``
            or ``"jax"`` by the library's own copy after a tensor arrived, ``"gpudirect"`` directly from the disk;
            ``"ring+torch"`` and similar for several paths, ``""`` if all tensors stayed in this machine's memory.
        peak_pinned_bytes: Peak of the pinned host memory that this load used, all devices together.
        readers: Number of shards per reader: ``file``, ``http`` and ``nfs`` are native, ``python`` is not.
        remarks: Why a shard was read by a slower path, which shards are missing under ``allow_missing_shards``,
            which tensors of a target stay on the meta device, and which code of a module was not run; usually empty.
        missing: Names of targets of `load_into` for which the checkpoint has no tensor, with ``strict=False``.
        unexpected: Names of tensors in the checkpoint for which `load_into` has no target, with ``strict=False``.
        verified: With ``verify=``, for each shard what was verified or why nothing was; empty without it.
        stages: Seconds spent in ``locate`` (listing), ``headers`` and ``read``.
        is_complete: Whether every requested tensor was delivered.
        metadata: What the files say beside their tensors, as `Checkpoint.metadata` returns it.
        bound_by: What the load waited for, with its share of the time, the largest first: ``{"store": 0.71,
            "consumer": 0.2, …}``. docs/traces.md explains the words.
    """

    uri: str
    tensors: int = 0
    bytes: int = 0
    bytes_read: int = 0
    shared_bytes: int = 0
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    outages: int = 0
    waited_s: float = 0.0
    probes: int = 0
    rereads: int = 0
    cached_bytes: int = 0
    peer_bytes: Mapping[str, int] = field(default_factory=dict)
    hedges: int = 0
    credential_refreshes: int = 0
    peak_held_bytes: int = 0
    device_path: str = ""
    peak_pinned_bytes: int = 0
    readers: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    verified: tuple[ObjectCheck, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    is_complete: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    bound_by: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_verified(self) -> bool:
        """Whether the bytes of every shard were compared with a digest."""
        return bool(self.verified) and all(each.verified_by for each in self.verified)

    @property
    def gb_per_s(self) -> float:
        """Throughput of the whole call in GB (10^9 bytes) per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the metadata, and ``gb_per_s``, as plain values for JSON."""
        plain = asdict(replace(self, metadata={}))
        del plain["metadata"]  # a vocabulary may be in it
        lists = {name: list(plain[name]) for name in ("remarks", "missing", "unexpected", "verified")}
        return {**plain, **lists, "gb_per_s": self.gb_per_s}

    def __str__(self) -> str:
        rate = f"{size_text(self.bytes)} in {self.seconds:.2f} s, {size_text(round(self.gb_per_s * 1e9))}/s"
        retries = f"{self.retries} retr{'y' if self.retries == 1 else 'ies'}"
        asked = f", {counted(self.requests, 'request')}, {retries}" if self.requests else ""
        shared = f", {size_text(self.shared_bytes)} of it read by other processes" if self.shared_bytes else ""
        cached = f", {size_text(self.cached_bytes)} of it from the cache" if self.cached_bytes else ""
        given = size_text(sum(self.peer_bytes.values()))
        cached += f", {given} of it from {counted(len(self.peer_bytes), 'peer')}" if self.peer_bytes else ""
        waited = f", {self.waited_s:.1f} s of it in {counted(self.outages, 'outage')}" if self.outages else ""
        bounds = f", bound by {bounds_text(self.bound_by)}" if self.bound_by else ""
        alone = "".join(
            f", {len(names)} {what}"
            for names, what in ((self.missing, "missing"), (self.unexpected, "unexpected"))
            if names
        )
        remarks = "".join(f"; note: {printable(each)}" for each in self.remarks)
        delivered = f"{counted(self.tensors, 'tensor')}, {rate}"
        return f"{printable(self.uri)}: {delivered}{shared}{cached}{asked}{waited}{bounds}{alone}{remarks}"


def load_report(
    uri: str,
    stats: Mapping[str, int],
    earlier: EarlierCounters,
    *,
    stages: Mapping[str, float],
    bytes_read: int,
    shared_bytes: int,
    peer_bytes: Mapping[str, int],
    sources: Sequence[Source],
    remarks: Sequence[str],
    verified: tuple[ObjectCheck, ...],
    device_path: str,
    is_complete: bool,
    metadata: Mapping[str, str],
) -> LoadReport:
    """Assemble the report of a load; the remarks of the sources are put before those on devices."""
    counters = earlier.added_to(stats)
    same: dict[str, Any] = {name: counters[name] for name in _COUNTERS} | {"uri": uri, "peer_bytes": peer_bytes}
    return LoadReport(
        tensors=stats["items_delivered"],
        bytes=stats["bytes_delivered"],
        bytes_read=bytes_read,
        shared_bytes=shared_bytes,
        seconds=sum(stages.values()),
        requests=counters["http_requests"],
        waited_s=counters["waited_us"] / 1e6,
        **same,
        readers=dict(Counter(_READERS[type(source)] for source in sources)),
        remarks=(*_remarks_of(sources), *remarks),
        verified=verified,
        device_path=device_path,
        stages=stages,
        is_complete=is_complete,
        metadata=metadata,
        bound_by=bound_by(
            stats,
            locating_s=sum(seconds for stage, seconds in stages.items() if stage != "read"),
            shared_share=min(1.0, shared_bytes / max(1, stats["bytes_landed"])),
        ),
    )


def joined_reports(first: LoadReport, second: LoadReport, read_again: Collection[int]) -> LoadReport:
    """Join the reports of a load and of the second read of all tensors in the shards `read_again`."""
    summed = {name: getattr(first, name) + getattr(second, name) for name in _SUMMED}
    highest = {name: max(getattr(first, name), getattr(second, name)) for name in _HIGHEST}
    checks = zip(first.verified, second.verified, strict=True)
    return replace(
        first,
        **summed,
        **highest,
        peer_bytes=second.peer_bytes,
        seconds=first.seconds + second.stages["read"],
        rereads=first.rereads + second.tensors,
        verified=tuple(now if shard in read_again else then for shard, (then, now) in enumerate(checks)),
        stages={**first.stages, "read": first.stages["read"] + second.stages["read"]},
        is_complete=first.is_complete and second.is_complete,
    )


def _remarks_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the distinct remarks of the sources."""
    remarks = [source.remark for source in sources if isinstance(source, PythonSource) and source.remark]
    return tuple(dict.fromkeys(remarks))


FIRST_CUFILE_CODE = 5000  # CUFILEOP_BASE_ERR: smaller codes are values of errno


def device_path(planned: Iterable[str], stats: Mapping[str, int]) -> str:
    """Join the planned paths of the tensors, corrected by the engine's counters.

    Example:
        >>> device_path(["ring", ""], {"gpudirect_bytes": 5, "bytes_landed": 5})
        'gpudirect'
    """
    taken = set(planned) - {""}
    if stats["gpudirect_bytes"] > 0:
        taken.add("gpudirect")
    if stats["gpudirect_bytes"] == stats["bytes_landed"] > 0:
        taken.discard("ring")
    return "+".join(sorted(taken))


def gpudirect_remarks(path: str, stats: Mapping[str, int], *, is_asked: bool) -> list[str]:
    """Return a remark why GPUDirect Storage was not used although the caller enabled it."""
    if not is_asked or "ring" not in path or "gpudirect" in path:
        return []
    reason = _native.cuda_gpudirect_problem() or _refusal(stats["gpudirect_refusal"])
    return [f"GPUDirect Storage was not used: {reason or 'no file was read past the page cache'}"]


def _refusal(code: int) -> str:
    if code >= FIRST_CUFILE_CODE:
        return f"libcufile refused a file with its code {code} (see CUfileOpError in NVIDIA's cufile.h)"
    return f"libcufile failed to read a file: {os.strerror(code)}" if code else ""
