"""A pull over a slow line that is stopped again and again: each run keeps what it has read, and the last one ends."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pulls import kept_bytes, pull, started, wait_for
from servers.scripted_http import Answer, Request, ScriptedServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

DATA = random.Random(35).randbytes(12_000_000)
SLOW = 2e6  # bytes per second, of all connections together
STOPPED_AFTER_S = 2.0  # from the first bytes of a file
MOST_RUNS = 12  # four would do, if nothing were lost
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def is_whole_when_stopped(
    start: Callable[[], subprocess.Popen[str]], proxy: TcpProxy, number: int, told: list[str]
) -> bool:
    """Pull for two seconds, and stop it with one of the signals."""
    before_bytes = proxy.passed_bytes
    process = start()
    try:
        wait_for(lambda: proxy.passed_bytes - before_bytes > 50_000 or process.poll() is not None)
        try:
            _, errors = process.communicate(timeout=STOPPED_AFTER_S)
        except subprocess.TimeoutExpired:
            process.send_signal(SIGNALS[number % len(SIGNALS)])
            told.append(process.communicate(timeout=20)[1])
            return False
        assert process.returncode == 0, errors
        return True
    finally:
        process.kill()


def pull_in_runs(proxy: TcpProxy, uri: str, copy: Path, options: dict[str, Any] | None = None) -> None:
    """Pull until it is whole; no run may lose what an earlier one kept, and most have to keep more."""
    kept = runs_without_gain = 0
    told: list[str] = []
    for number in range(MOST_RUNS):
        if is_whole_when_stopped(lambda: started(uri, copy, options=options), proxy, number, told):
            return
        assert kept_bytes(copy) >= kept, f"run {number} lost some of {kept} bytes: {told[-2:]}"
        runs_without_gain += kept_bytes(copy) == kept  # a busy machine may not come to write in two seconds
        kept = kept_bytes(copy)
        assert runs_without_gain <= MOST_RUNS // 2, f"{kept} bytes after {number + 1} runs"
    raise AssertionError(f"{kept} bytes after {MOST_RUNS} runs")


def test_a_pull_that_is_stopped_every_two_seconds_on_a_slow_line_ends_regression(tmp_path: Path) -> None:
    with ScriptedServer(DATA) as server, TcpProxy(server.port, http_requests, bytes_per_s=SLOW) as proxy:
        server.script = lambda request, answer: answer.become(404) if request.path.endswith("/") else None
        pull_in_runs(proxy, f"http://127.0.0.1:{proxy.port}/object", tmp_path / "copy")
    assert (tmp_path / "copy" / "object").read_bytes() == DATA


def test_a_stopped_pull_of_many_files_from_s3_ends_on_a_slow_line_regression(
    s3_server: SeaweedServer, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for number, begin in enumerate(range(0, len(DATA), 3_000_000)):
        (model / f"{number}.bin").write_bytes(DATA[begin : begin + 3_000_000])
    uri = s3_server.upload_folder(model, "private", f"slow/{tmp_path.name}")
    with TcpProxy(s3_server.port, http_requests, bytes_per_s=SLOW) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        pull_in_runs(proxy, uri, tmp_path / "copy", options)
    for each in model.iterdir():
        assert (tmp_path / "copy" / each.name).read_bytes() == each.read_bytes()


@pytest.mark.parametrize("wait_s", [0.0, 0.02])
def test_a_fast_pull_makes_few_more_requests_than_with_the_largest_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    data = DATA * 16

    def late(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(404)
        server.stopping.wait(wait_s)

    with ScriptedServer(data, late) as server:
        assert pull(server.url, tmp_path / "copy")["exit_code"] == 0
        asked = [each for each in server.requests if each.end - each.begin > 1 and "range" in each.headers]
    assert sum(each.end - each.begin for each in asked) == len(data)
    assert len(asked) < len(data) / (1 << 20) + 30  # blocks of 1 MiB at first; larger ones if the server is slow
