"""``doctor`` alone tells what is wrong with a set-up, and its advice, followed, mends it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save, save_file
from servers.scripted_http import Answer, Request, Script, ScriptedServer
from servers.tcp_proxy import TcpProxy, http_requests
from uploads import STORAGES, uploaded

from streamer._cli import main
from streamer._doctor import bench, speed
from streamer._doctor import machine as machine_probes
from streamer.core.options import machine

DATA = save({"w": torch.ones(1000)})
Place = tuple[str, dict[str, Any]]


def doctor(uri: str, options: dict[str, Any], *more: str) -> dict[str, dict[str, str]]:
    """Return the lines by their names; of several, the one that is worst."""
    words = ["doctor", uri, "--storage-options", json.dumps(options), "--seconds", "0", "--timeout", "60"]
    result = CliRunner().invoke(main, [*words, *more, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found: dict[str, dict[str, str]] = {}
    order = ["unknown", "ok", "slow", "broken"]
    for each in sorted(json.loads(result.stdout)["findings"], key=lambda each: order.index(each["state"])):
        found[each["name"]] = each
    assert result.exit_code == any(each["state"] == "broken" for each in found.values())
    return found


class Setting:
    """What a row may change, until its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, stack: ExitStack) -> None:
        self.monkeypatch, self.folder, self._stack = monkeypatch, folder, stack

    def server(self, script: Script | None = None, data: bytes = DATA, **how: Any) -> ScriptedServer:
        server = self._stack.enter_context(ScriptedServer(data, script, **how))
        server.answers_head = True
        return server

    def bucket(self, script: Script | None = None, **how: Any) -> tuple[ScriptedServer, Place]:
        """Start a server of S3's kind whose bucket has one file; the script changes its answers."""

        def answer_as_s3(request: Request, answer: Answer) -> None:
            if "list-type" in request.path:
                entry = f"<Key>m/model.safetensors</Key><Size>{len(DATA)}</Size><ETag>&quot;v1&quot;</ETag>"
                listed = f"<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>"
                answer.become(200, listed.encode(), Content_Type="application/xml")
            elif not request.path.partition("?")[0].endswith("/m/model.safetensors"):
                refuse(answer, 404, "NoSuchKey")
            if script is not None:
                script(request, answer)

        server = self.server(answer_as_s3, **how)
        return server, ("s3://bucket/m", s3_options(server))

    def proxy(self, server: ScriptedServer, **how: Any) -> TcpProxy:
        return self._stack.enter_context(TcpProxy(server.port, http_requests, **how))

    def closed_port(self) -> int:
        held = self._stack.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))  # and does not listen
        port: int = held.getsockname()[1]
        return port

    def trust(self, server: ScriptedServer) -> None:
        assert server.authority is not None
        server.authority.cert_pem.write_to_path(self.folder / "ca.pem")
        self.monkeypatch.setenv("SSL_CERT_FILE", str(self.folder / "ca.pem"))


def s3_options(server: ScriptedServer) -> dict[str, Any]:
    return {"key": "k", "secret": "s", "endpoint_url": server.url.removesuffix("/object")}


def refuse(answer: Answer, status: int, code: str) -> None:
    answer.become(status, f"<Error><Code>{code}</Code></Error>".encode(), Content_Type="application/xml")


def web(server: ScriptedServer) -> Place:
    return f"{server.url}.safetensors", {}


class Row(NamedTuple):
    line: str
    state: str
    places: Callable[[Setting], Iterator[Place]]  # the broken one, then the mended one
    advice: str  # a part of it


def wrong_bucket(setting: Setting) -> Iterator[Place]:
    def script(request: Request, answer: Answer) -> None:
        if request.path.startswith("/absent"):
            refuse(answer, 404, "NoSuchBucket")

    _, (uri, options) = setting.bucket(script)
    yield "s3://absent/m", options
    yield uri, options


def wrong_endpoint(setting: Setting) -> Iterator[Place]:
    _, (uri, options) = setting.bucket()
    yield uri, {**options, "endpoint_url": f"http://127.0.0.1:{setting.closed_port()}"}
    yield uri, options


def wrong_scheme(setting: Setting) -> Iterator[Place]:
    _, (uri, options) = setting.bucket()
    yield uri.replace("s3:", "s4:"), options
    yield uri, options


def wrong_region(setting: Setting) -> Iterator[Place]:
    def script(request: Request, answer: Answer) -> None:
        if "eu-north-1" not in request.path + request.headers.get("authorization", ""):
            refuse(answer, 400, "AuthorizationHeaderMalformed")

    _, (uri, options) = setting.bucket(script)
    yield uri, options
    yield uri, {**options, "client_kwargs": {"region_name": "eu-north-1"}}


def expired_token(setting: Setting) -> Iterator[Place]:
    def script(request: Request, answer: Answer) -> None:
        if "OLD-TOKEN" in request.path + request.headers.get("x-amz-security-token", ""):
            refuse(answer, 400, "ExpiredToken")

    _, (uri, options) = setting.bucket(script)
    yield uri, {**options, "token": "OLD-TOKEN"}
    yield uri, {**options, "token": "NEW-TOKEN"}


def wrong_clock(setting: Setting) -> Iterator[Place]:
    dates = ["Mon, 01 Jan 2035 00:00:00 GMT"]

    def script(request: Request, answer: Answer) -> None:
        if dates:
            answer.headers["Date"] = dates[0]

    server = setting.server(script)
    yield web(server)
    dates.clear()
    yield web(server)


def no_listing(setting: Setting) -> Iterator[Place]:
    def script(request: Request, answer: Answer) -> None:
        if "list-type" in request.path:
            refuse(answer, 403, "AccessDenied")

    _, (uri, options) = setting.bucket(script)
    yield uri, options
    yield f"{uri}/model.safetensors", options


def no_reads(setting: Setting) -> Iterator[Place]:
    yield from _refused(setting, 403, "AccessDenied")


def throttled(setting: Setting) -> Iterator[Place]:
    yield from _refused(setting, 503, "SlowDown")


def _refused(setting: Setting, status: int, code: str) -> Iterator[Place]:
    codes = [code]

    def script(request: Request, answer: Answer) -> None:
        if codes and answer.handler.command == "GET" and "list-type" not in request.path:
            refuse(answer, status, codes[0])

    _, place = setting.bucket(script)
    yield place
    codes.clear()
    yield place


def cut_shard(setting: Setting) -> Iterator[Place]:
    file = setting.folder / "model.safetensors"
    file.write_bytes(DATA[:-1])
    yield str(setting.folder), {}
    file.write_bytes(DATA)
    yield str(setting.folder), {}


def missing_shard(setting: Setting) -> Iterator[Place]:
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    (setting.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (setting.folder / "model-1.safetensors").write_bytes(DATA)
    yield str(setting.folder), {}
    (setting.folder / "model-2.safetensors").write_bytes(save({"v": torch.ones(1)}))
    yield str(setting.folder), {}


def weights_below(setting: Setting) -> Iterator[Place]:
    (setting.folder / "inner").mkdir()
    (setting.folder / "inner/model.safetensors").write_bytes(DATA)
    yield str(setting.folder), {}
    yield str(setting.folder / "inner"), {}


def unknown_host(setting: Setting) -> Iterator[Place]:
    yield "http://no-such-host.invalid/model.safetensors", {}
    yield web(setting.server())


def dead_proxy(setting: Setting) -> Iterator[Place]:
    server = setting.server()
    setting.monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{setting.closed_port()}")
    yield web(server)
    setting.monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield web(server)


def private_authority(setting: Setting) -> Iterator[Place]:
    server = setting.server(with_tls=True)
    yield web(server)
    setting.trust(server)
    yield web(server)


def client_certificate(setting: Setting) -> Iterator[Place]:
    server, (uri, options) = setting.bucket(demands_certificate=True)
    setting.trust(server)
    yield uri, options
    assert server.authority is not None
    own = server.authority.issue_cert("client.test")
    own.private_key_and_cert_chain_pem.write_to_path(setting.folder / "own.pem")
    path = str(setting.folder / "own.pem")
    yield uri, {**options, "config_kwargs": {"client_cert": path}}


def no_ranges(setting: Setting) -> Iterator[Place]:
    has_none = [True]

    def script(request: Request, answer: Answer) -> None:
        if has_none:
            answer.become(200, DATA, ETag='"v1"')

    server = setting.server(script)
    yield web(server)
    has_none.clear()
    yield web(server)


def small_group(setting: Setting) -> Iterator[Place]:
    server = setting.server()
    with setting.monkeypatch.context() as patched:
        patched.setattr(machine, "memory_bytes", lambda: 1000)
        yield web(server)
    yield web(server)


def fuse_mount(setting: Setting) -> Iterator[Place]:
    file = setting.folder / "model.safetensors"
    save_file({"w": torch.ones(9)}, file)
    (setting.folder / "mounts").write_text(f"25 1 0:3 / {setting.folder} rw - fuse.rclone remote: rw\n")
    with setting.monkeypatch.context() as patched:
        patched.setattr(machine_probes, "MOUNTS", setting.folder / "mounts")
        yield str(file), {}
    yield web(setting.server())  # its own URL, in place of the mount


def small_shared_memory(setting: Setting) -> Iterator[Place]:
    server = setting.server()
    sizes = {64: (4096, 4096, 16384, 16000, 16000, 9, 9, 9, 0, 255), 16384: (4096, 4096, 1 << 22, 1 << 21, 1 << 21, 9)}
    for blocks in sizes.values():
        found = os.statvfs_result((*blocks, 9, 9, 0, 255)[:10])
        with setting.monkeypatch.context() as patched:
            patched.setattr(machine_probes.os, "statvfs", lambda _, found=found: found)
            yield web(server)


def one_processor(setting: Setting) -> Iterator[Place]:
    server, allowed = setting.server(), os.sched_getaffinity(0)
    if machine.processors() < 2:
        pytest.skip("this machine has one processor")
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield web(server)
    finally:
        os.sched_setaffinity(0, allowed)
    yield web(server)


def hung_server(setting: Setting) -> Iterator[Place]:
    is_hung = [True]

    def script(request: Request, answer: Answer) -> None:
        if is_hung:
            server.stopping.wait(8)

    server = setting.server(script)
    yield web(server)
    is_hung.clear()
    yield web(server)


ROWS = [
    Row("place", "broken", wrong_bucket, "its name"),
    Row("server", "broken", wrong_endpoint, "port"),
    Row("scheme", "broken", wrong_scheme, ""),
    Row("region", "broken", wrong_region, ""),
    Row("credentials", "broken", expired_token, ""),
    Row("clock", "broken", wrong_clock, "Set it"),
    Row("permissions", "slow", no_listing, "s3:ListBucket"),
    Row("permissions", "broken", no_reads, "s3:GetObject"),
    Row("server", "broken", throttled, "Ask who runs it"),
    Row("checkpoint", "broken", cut_shard, "upload or download"),
    Row("checkpoint", "broken", missing_shard, "Fetch it"),
    Row("place", "broken", weights_below, "Name one of its folders"),
    Row("names", "broken", unknown_host, "spelling"),
    Row("proxy", "broken", dead_proxy, "NO_PROXY"),
    Row("certificates", "broken", private_authority, "SSL_CERT_FILE"),
    Row("certificates", "broken", client_certificate, "client_cert"),
    Row("ranges", "slow", no_ranges, ""),
    Row("size", "broken", small_group, "memory limit"),
    Row("mount", "slow", fuse_mount, "its own URL"),
    Row("shared memory", "slow", small_shared_memory, "--shm-size"),
    Row("processors", "slow", one_processor, "quota"),
    Row("server", "broken", hung_server, ""),
]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("row", ROWS, ids=[row.places.__name__ for row in ROWS])
def test_the_line_of_a_broken_set_up_says_what_mends_it(
    row: Row, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        places = row.places(Setting(monkeypatch, tmp_path, stack))
        more = ("--timeout", "2") if row.places is hung_server else ()
        found = doctor(*next(places), *more)
        line = found.get(row.line)
        assert line is not None, found
        assert line["state"] == row.state, found
        assert line["advice"], line
        assert row.advice in line["advice"], line
        after = doctor(*next(places))
        assert after.get(row.line, {"state": "ok"})["state"] == "ok", after
        assert [each for each in after.values() if each["state"] == "broken"] == []
        places.close()


def test_a_slow_store_has_a_slow_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ExitStack() as stack:
        setting = Setting(monkeypatch, tmp_path, stack)
        proxy = setting.proxy(setting.server(data=bytes(32 << 20)), bytes_per_s=20e6)
        uri = f"http://127.0.0.1:{proxy.port}/object.bin"
        result = CliRunner().invoke(main, ["doctor", uri, "--seconds", "0.5", "--json"])
        reported = json.loads(result.stdout)
        line = next(each for each in reported["findings"] if each["name"] == "speed")
        assert (line["state"], "ask who runs it" in line["advice"]) == ("slow", True), line
        assert reported["bound"]["by"] in ("the storage or the network to it", "this machine's processors")


@pytest.mark.parametrize(("size_bytes", "sends_small"), [(1 << 20, True), (32 << 20, True), (1 << 20, False)])
def test_a_server_too_slow_for_one_block_is_slow_and_a_silent_one_broken_regression(
    size_bytes: int, sends_small: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        setting = Setting(monkeypatch, tmp_path, stack)

        def script(request: Request, answer: Answer) -> None:
            if request.end - request.begin > (65536 if sends_small else 1):
                server.stopping.wait(60)

        server = setting.server(script, data=bytes(size_bytes))
        words = ["doctor", f"{server.url}.bin", "--seconds", "0.5", "--timeout", "6", "--json"]
        found = json.loads(CliRunner().invoke(main, words).stdout)["findings"]
        lines = [each for each in found if each["name"] == "speed"]
        assert [each["state"] for each in lines] == ["slow" if sends_small else "broken"], found
        assert "--timeout" not in lines[0]["advice"]


def test_a_slow_disk_has_a_slow_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No disk can be slowed down without root, so the measurement is replaced."""
    (tmp_path / "model.bin").write_bytes(bytes(32 << 20))
    monkeypatch.setattr(speed, "measured", lambda *_: speed.Speed(10**7, 1.0, 0.01))
    result = CliRunner().invoke(main, ["doctor", str(tmp_path), "--json"])
    reported = json.loads(result.stdout)
    line = next(each for each in reported["findings"] if each["name"] == "speed")
    assert (line["state"], "The disk" in line["advice"]) == ("slow", True), line
    assert reported["bound"]["achieved_gb_s"] == 0.01


def test_the_report_ends_with_what_bounds_it_and_a_text_without_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        setting = Setting(monkeypatch, tmp_path, stack)
        port = setting.server(data=bytes(32 << 20)).port
        monkeypatch.setenv("https_proxy", "http://user:CANARY-PASSWORD@127.0.0.1:9")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARY-OF-THE-ENVIRONMENT")
        uri = f"http://user:CANARY-CANARY@127.0.0.1:{port}/object.bin?sig=CANARY-CANARY"
        options = json.dumps({"headers": {"Authorization": "Bearer CANARY-TOKEN"}})
        words = ["doctor", uri, "--storage-options", options, "--seconds", "0.2"]
        printed = CliRunner().invoke(main, words).output
        assert "CANARY" not in printed
        lines = printed.splitlines()
        assert any(line.startswith("bound by ") and " GB/s" in line for line in lines), printed
        block = printed.partition("```")[2]
        assert "streamer " in block
        assert f"http://127.0.0.1:{port}/object.bin" in block
        assert "CANARY" not in CliRunner().invoke(main, [*words, "--json"]).output


@pytest.mark.parametrize("option", ["--seconds", "--timeout"])
def test_a_time_that_is_no_number_is_refused_regression(option: str) -> None:
    result = CliRunner().invoke(main, ["doctor", option, "nan"])
    assert (result.exit_code, "is no number" in result.stderr) == (2, True)


def test_a_closed_standard_output_is_no_error_regression() -> None:
    result = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m streamer doctor >&-', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode in (0, 1), result.stderr) == (True, "")


def test_without_a_uri_the_machine_is_examined() -> None:
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)["findings"]
    names = {each["name"] for each in found}
    assert {"kernel", "huge pages", "io_uring", "memory", "processors", "open files", "memlock"} <= names
    assert {"shared memory", "gpu", "proxies", "CA files", "libraries"} <= names
    assert all(each["state"] in ("ok", "slow", "broken", "unknown") for each in found)


@pytest.mark.parametrize("kind", ["file", "http"])
def test_the_bench_has_raw_reads_beside_those_of_a_load(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        data = bytes(17 << 20)
        (tmp_path / "model.bin").write_bytes(data)
        monkeypatch.setattr(bench, "IN_FLIGHT", (1, 4))
        setting = Setting(monkeypatch, tmp_path, stack)
        uri = str(tmp_path) if kind == "file" else f"{setting.server(data=data).url}.bin"
        words = ["doctor", uri, "--bench", "--seconds", "0.05"]
        rows = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["bench"]
        assert {(row["reader"], row["in_flight"]) for row in rows} == {
            (reader, number) for reader in ("raw", "load") for number in (1, 4)
        }
        assert all(row["gb_s"] > 0 for row in rows)
        states = {row["state"] for row in rows}
        assert states <= ({"network"} if kind == "http" else {"cold", "warm", "partly cached"})
        if kind == "file":
            assert "CPU-S/GB" in CliRunner().invoke(main, words).output


@pytest.mark.parametrize("storage", STORAGES)
def test_nothing_is_broken_where_a_storage_works(request: pytest.FixtureRequest, storage: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"w": torch.ones(1000)}, tmp_path / "model/model.safetensors")
    found = doctor(*uploaded(request, storage, tmp_path / "model"))
    assert [each for each in found.values() if each["state"] == "broken"] == []
    assert {"login", "permissions", "ranges", "versions", "checksums", "size"} <= found.keys()
    assert ("first byte" in found) == (storage in ("s3", "gs", "az", "http", "hf"))
