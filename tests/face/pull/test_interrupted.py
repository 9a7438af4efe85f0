"""A pull that is killed, stopped, out of space or overtaken: what is there stays right, and the next run goes on."""

from __future__ import annotations

import itertools
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nobody import as_nobody
from pulls import arguments, kept_bytes, parts, pull, started, visible, wait_for
from safetensors.torch import save_file
from servers.scripted_http import Answer, Request, ScriptedServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer._pull.pull import PullArguments
from streamer._pull.pull import pull as pull_folder
from streamer.core.folders.open_folder import OpenFolder
from streamer.core.verification.file_bytes import FileDigests

PIECE = 8 << 20
BLOCK = 64 << 10  # of which blocks have a multiple
DATA = bytes(range(256)) * (5 * PIECE // 256)


class Gate:
    """Holds back what lies behind the second piece until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.is_open = False

    def __call__(self, request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(404)  # it is no folder
        elif request.begin >= 2 * PIECE and not self.is_open:
            self.opened.wait(60)

    def open(self) -> None:
        self.is_open = True
        self.opened.set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def arrived(folder: Path) -> bool:
    return sum(part.stat().st_size for part in parts(folder)) >= 2 * PIECE


@pytest.mark.parametrize(("number", "code"), [("SIGKILL", -9), ("SIGTERM", 143), ("SIGINT", 130)])
def test_a_stopped_pull_goes_on_where_it_stopped(gate: Gate, tmp_path: Path, number: str, code: int) -> None:
    with ScriptedServer(DATA, gate) as server:
        process = started(server.url, tmp_path / "copy")
        try:
            wait_for(lambda: arrived(tmp_path / "copy"))
            process.send_signal(getattr(signal, number))
            reported, errors = process.communicate(timeout=10)
        finally:
            process.kill()
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        if code > 0:
            assert json.loads(reported)["exit_code"] == code
        assert visible(tmp_path / "copy") == set()
        gate.open()
        before = len(server.requests)
        reported = pull(server.url, tmp_path / "copy")
        assert reported["exit_code"] == 0, reported
        assert reported["read_bytes"] == 3 * PIECE
        asked = [each for each in server.requests[before:] if "range" in each.headers]
        ranges = sorted(
            (each.begin, each.end) for each in asked if each.end - each.begin > 1
        )  # the probe's has one byte
        assert sum(end - begin for begin, end in ranges) == 3 * PIECE
        assert ranges[0][0] == 2 * PIECE
        assert (tmp_path / "copy" / "object").read_bytes() == DATA


def test_a_part_shows_its_progress_while_it_is_read_again_regression(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar stood still until all was hashed that earlier runs had left."""
    with ScriptedServer(DATA, gate) as server:
        process = started(server.url, tmp_path / "copy")
        try:
            wait_for(lambda: arrived(tmp_path / "copy"))
        finally:
            process.kill()
            process.communicate()
        gate.open()
        shown: list[tuple[int, int]] = []
        update = FileDigests.update

        def update_when_shown(self: FileDigests, data: memoryview) -> None:
            """Read no more of the part before what was read so far is shown, beside the whole blocks that arrived."""
            read_again = self.position_bytes
            if 0 < read_again < 2 * PIECE:
                wait_for(lambda: any(done % BLOCK == read_again % BLOCK for done, _ in shown))
            update(self, data)

        monkeypatch.setattr(FileDigests, "update", update_when_shown)
        monkeypatch.setattr("streamer._pull.resumed_file.READ_BYTES", PIECE // 4 + 1)
        pull_folder(
            server.url,
            str(tmp_path / "copy"),
            PullArguments(),
            progress=lambda done, total: shown.append((done, total)),
            on_wait=lambda line: None,
        )
    assert {total for _, total in shown} == {len(DATA)}
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    assert shown[-1][0] == len(DATA)
    assert (tmp_path / "copy" / "object").read_bytes() == DATA


def test_a_pull_whose_object_changed_meanwhile_begins_again(gate: Gate, tmp_path: Path) -> None:
    with ScriptedServer(DATA, gate) as server:
        process = started(server.url, tmp_path / "copy")
        wait_for(lambda: arrived(tmp_path / "copy"))
        process.kill()
        process.communicate()
        gate.open()
        server.data, server.etag = DATA[::-1], '"v2"'
        assert pull(server.url, tmp_path / "copy")["read_bytes"] == len(DATA)
        assert (tmp_path / "copy" / "object").read_bytes() == DATA[::-1]


def test_an_object_that_changes_during_the_pull_is_an_error_worth_another_try(tmp_path: Path) -> None:
    def change(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(404)
        elif request.begin >= 2 * PIECE:
            answer.become(412)

    with ScriptedServer(DATA, change) as server:
        reported = pull(server.url, tmp_path / "copy")
    assert (reported["exit_code"], reported["error"]) == (75, "ChangedError"), reported
    assert visible(tmp_path / "copy") == set()


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint of which any shard alone loads: no index, and no numbers."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in "abcd":
        save_file({name: torch.arange(1_000_000.0)}, folder / f"{name}.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def test_a_killed_pull_of_a_folder_keeps_whole_files_and_shows_none(
    s3_server: SeaweedServer, sharded: Path, tmp_path: Path
) -> None:
    uri, copy = s3_server.upload_folder(sharded, "private", f"pulls/{tmp_path.name}"), tmp_path / "copy"
    total_bytes = sum(each.stat().st_size for each in sharded.iterdir())
    with TcpProxy(s3_server.port, http_requests, bytes_per_s=8e6) as proxy:
        options = s3_server.storage_options()
        options["endpoint_url"] = f"http://127.0.0.1:{proxy.port}"
        process = started(uri, copy, options=options)
        wait_for(lambda: sum(part.stat().st_size for part in parts(copy)) > 4_000_000)
        process.kill()
        process.communicate()
        assert visible(copy) == set()
        with pytest.raises(streamer.ObjectNotFoundError, match="half pulled"):
            streamer.load(copy)
        here_bytes = sum(part.stat().st_size for part in parts(copy))
        proxy.bytes_per_s = None
        passed_bytes = proxy.passed_bytes
        reported = pull(uri, copy, options=options)
        assert reported["exit_code"] == 0, reported
        assert reported["read_bytes"] == total_bytes - here_bytes
        assert proxy.passed_bytes - passed_bytes < total_bytes - here_bytes + 200_000  # listings and heads
    assert streamer.load(copy)["d"].equal(torch.arange(1_000_000.0))


def test_two_pulls_into_one_folder_read_everything_once(gate: Gate, tmp_path: Path) -> None:
    with ScriptedServer(DATA, gate) as server:
        first = started(server.url, tmp_path / "copy")
        wait_for(lambda: arrived(tmp_path / "copy"))
        second = started(server.url, tmp_path / "copy")
        assert second.stderr is not None
        assert "another process pulls into" in second.stderr.readline()
        gate.open()
        results = [json.loads(process.communicate(timeout=60)[0]) for process in (first, second)]
    assert [each["read_bytes"] for each in results] == [len(DATA), 0]
    assert (tmp_path / "copy" / "object").read_bytes() == DATA


def test_a_waiting_pull_ends_with_a_signal(gate: Gate, tmp_path: Path) -> None:
    with ScriptedServer(DATA, gate) as server:
        first = started(server.url, tmp_path / "copy")
        wait_for(lambda: arrived(tmp_path / "copy"))
        second = started(server.url, tmp_path / "copy")
        assert second.stderr is not None
        second.stderr.readline()
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=10)
        assert second.returncode == 143
        gate.open()
        first.communicate(timeout=60)
        assert first.returncode == 0


def test_a_disk_without_room_is_an_error_before_the_first_byte(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.statvfs

    def nearly_full(path: str) -> os.statvfs_result:
        values = list(real(path))
        values[4] = 10  # f_bavail, in blocks
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    reported = pull(sharded, tmp_path / "copy")
    assert reported["exit_code"] == 73, reported
    assert "16.0 MB are needed, and" in reported["message"]
    assert parts(tmp_path / "copy") == []


def test_a_disk_that_fills_during_the_pull_is_an_error_and_the_next_run_goes_on(sharded: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    command = [sys.executable, "-m", "streamer", *arguments(sharded, tmp_path / "copy")]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 73, done.stderr
    assert re.search(
        r"copy/.streamer-pull/parts/\w+, the part of .\.safetensors cannot be made or written: File too large",
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    assert visible(tmp_path / "copy") == set()
    assert pull(sharded, tmp_path / "copy")["exit_code"] == 0
    assert len(streamer.load(tmp_path / "copy")) == 4


def test_an_unwritable_folder_has_the_code_of_the_disk(sharded: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reported = pull(sharded, tmp_path / "file" / "copy")
    assert reported["exit_code"] == 73, reported


def test_an_interrupted_renaming_is_finished_without_the_storage(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, real, moves = tmp_path / "copy", OpenFolder.move, []

    def stops(self: OpenFolder, name: str, target: OpenFolder, new_name: str) -> None:
        if target is not self:
            moves.append(new_name)
            if len(moves) == 3:
                raise KeyboardInterrupt
        real(self, name, target, new_name)

    with monkeypatch.context() as patch:
        patch.setattr(OpenFolder, "move", stops)
        assert pull(sharded, copy)["exit_code"] == 130
    assert visible(copy) == {"a.safetensors", "b.safetensors"}  # what models are found by comes last
    with pytest.raises(streamer.ObjectNotFoundError, match="half pulled"):
        streamer.load(copy)
    reported = pull(sharded, copy)
    assert (reported["exit_code"], reported["read_bytes"]) == (0, 0), reported
    assert len(streamer.load(copy)) == 4
    assert visible(copy) == visible(sharded)


def test_a_pull_that_stops_at_any_change_of_its_folder_loses_no_byte_regression(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all files were whole, their notes were removed before the list of moves was there: all was read again."""
    total_bytes = sum(each.stat().st_size for each in sharded.iterdir())
    for point in itertools.count():
        copy, changes = tmp_path / f"copy{point}", itertools.count()
        with monkeypatch.context() as patch:
            for name in ("move", "remove"):  # notes and records are moved, too
                patch.setattr(OpenFolder, name, stopping(getattr(OpenFolder, name), point, changes))
            is_whole = pull(sharded, copy)["exit_code"] == 0
        kept = kept_bytes(copy)
        assert pull(sharded, copy)["read_bytes"] == total_bytes - kept, f"stopped at change {point}"
        assert len(streamer.load(copy)) == 4
        if is_whole:
            break
    assert point > 20


def stopping(call: Callable[..., None], point: int, changes: Iterator[int]) -> Callable[..., None]:
    """Stop the pull before the change of this number."""

    def stop_or_call(*arguments: Any) -> None:
        if next(changes) == point:
            raise KeyboardInterrupt
        call(*arguments)

    return stop_or_call


def test_bytes_are_kept_after_a_crash_of_the_machine_only_if_they_were_flushed(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(DATA, gate) as server:
        process = started(server.url, tmp_path / "copy")
        wait_for(lambda: arrived(tmp_path / "copy"))
        process.kill()
        process.communicate()
        gate.open()
        monkeypatch.setattr("streamer._pull.resumed_file._boot", lambda: "another boot")
        assert pull(server.url, tmp_path / "copy")["read_bytes"] == len(DATA)
    assert (tmp_path / "copy" / "object").read_bytes() == DATA


def test_a_complete_folder_that_cannot_be_written_is_complete_regression() -> None:
    """It failed although nothing had to be written: the lock was opened for writing."""
    with tempfile.TemporaryDirectory() as name:
        source, folder = Path(name, "source"), Path(name, "here")
        source.mkdir()
        (source / "config.json").write_text("{}")
        (source / "b.txt").write_text("b")
        assert pull(source, folder)["exit_code"] == 0
        for path, mode in ((Path(name), 0o755), (folder / ".streamer-pull/lock", 0o444), (folder, 0o555)):
            path.chmod(mode)
        with as_nobody():
            found = pull(source, folder)
        assert (found["exit_code"], found["kept_files"], found["read_bytes"]) == (0, 2, 0), found
        (source / "c.txt").write_text("c")
        with as_nobody():
            missing = pull(source, folder)
        folder.chmod(0o755)
    assert missing["exit_code"] == 73
    assert "Read-only; files to write or remove: 1, such as 'c.txt'" in missing["stderr"] + str(missing)
