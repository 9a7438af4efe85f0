"""Caches of files that several processes fill and read at the same time: a tensor is right, or there is an error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from each_row import each_row
from fsspec.implementations.local import LocalFileSystem
from pulls import wait_for
from safetensors.torch import save, save_file
from servers.nginx import NginxServer
from servers.one_file import one_file, place_of
from servers.scripted_http import Answer, Request, ScriptedServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer.backends.private_names.fsspec import cached_file_name

CACHES = ["simplecache", "filecache", "blockcache"]
PROCESSES = 3
BYTES_PER_S = 12e6  # a second and more for the file, in which all processes have begun
TENSORS = {f"t{number}": torch.arange(number, 500_000 + number, dtype=torch.float32) for number in range(6)}

CHILD = """
import hashlib, json, sys, fsspec, streamer
uri, options, file = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
if "memory://" in uri:
    fsspec.filesystem("memory").pipe_file("/m/model.safetensors", open(file, "rb").read())
print("ready", flush=True)
sys.stdin.readline()
if uri.startswith("streamer::"):
    with fsspec.open(uri, **options) as opened:
        print(hashlib.sha256(opened.read()).hexdigest())
else:
    tensors = streamer.load(uri, storage_options=options, framework="np", progress=False)
    print(hashlib.sha256(b"".join(tensors[name].tobytes() for name in sorted(tensors))).hexdigest())
"""


@dataclass
class Place:
    """A file in a storage.

    Attributes:
        uri: Without a cache.
        options: By scheme.
        proxy: Through which it is read; None for memory.
    """

    uri: str
    options: dict[str, Any]
    proxy: TcpProxy | None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    return path


@pytest.fixture
def place(request: pytest.FixtureRequest, file: Path) -> Iterator[Place]:
    """A slow server that lists nothing; and, as a control, memory."""
    name = f"{file.parent.name}/{file.name}"
    if request.param == "memory":
        yield Place("memory://m/model.safetensors", {}, None)
    elif request.param in ("http", "whole", "chunked"):
        nginx: NginxServer = request.getfixturevalue("http_server")
        (nginx.root / file.parent.name).mkdir()
        (nginx.root / name).write_bytes(file.read_bytes())
        with TcpProxy(nginx.http_port, http_requests, bytes_per_s=BYTES_PER_S) as proxy:
            location = request.param if request.param != "http" else "unlisted"
            yield Place(f"http://127.0.0.1:{proxy.port}/{location}/{name}", {}, proxy)
    else:
        server: SeaweedServer = request.getfixturevalue("s3_server")
        server.put("unlisted", name, file.read_bytes())
        with TcpProxy(server.port, http_requests, bytes_per_s=BYTES_PER_S) as proxy:
            endpoint = {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}
            options = {"s3": {**server.storage_options(server.limited), **endpoint}}
            yield Place(f"s3://unlisted/{name}", options, proxy)


def copies(folder: Path) -> list[Path]:
    """List the copies in a cache: not its record, nor the notes of what a copy is of."""
    return [each for each in folder.iterdir() if each.name != "cache" and each.suffix != ".source"]


def started(prefix: str, place: Place, cache: str, folder: Path, file: Path) -> subprocess.Popen[str]:
    """Start a process, which waits for a line."""
    options = {**place.options, cache: {"cache_storage": str(folder)}}
    command = [sys.executable, "-c", CHILD, f"{prefix}{cache}::{place.uri}", json.dumps(options), str(file)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes)


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def digests(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Start all at the same time, and give what they read."""
    for process in processes:
        go(process)
    reported = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), reported
    return [output.strip() for output, _ in reported]


def expected(prefix: str, file: Path) -> str:
    content = b"".join(TENSORS[name].numpy().tobytes() for name in sorted(TENSORS))
    return hashlib.sha256(file.read_bytes() if prefix else content).hexdigest()


# Those of every run: simplecache and filecache share their code, and memory is a control.
QUICK = [
    ("http", "", "blockcache"),
    ("http", "", "filecache"),
    ("s3", "", "simplecache"),
    ("http", "streamer::", "blockcache"),
]
ROWS = [
    pytest.param(place, prefix, cache, marks=[] if (place, prefix, cache) in QUICK else [pytest.mark.nightly])
    for place, prefix in (("http", ""), ("s3", ""), ("memory", ""), ("http", "streamer::"))
    for cache in CACHES
]


@pytest.mark.parametrize(("place", "prefix", "cache"), ROWS, indirect=["place"])
def test_processes_that_begin_together_and_later_read_the_same_bytes_regression(
    cache: str, prefix: str, place: Place, file: Path, tmp_path: Path
) -> None:
    folder, right = tmp_path / "cache", expected(prefix, file)
    assert digests([started(prefix, place, cache, folder, file) for _ in range(PROCESSES)]) == [right] * PROCESSES
    size_bytes = file.stat().st_size
    if place.proxy is not None and cache != "blockcache":  # which downloads for each process that reads meanwhile
        assert place.proxy.passed_bytes < 1.5 * size_bytes
    before = place.proxy.passed_bytes if place.proxy is not None else 0
    assert digests([started(prefix, place, cache, folder, file)]) == [right]
    if place.proxy is not None:
        assert place.proxy.passed_bytes - before < size_bytes / 2
    assert {each.stat().st_size for each in copies(folder)} == {size_bytes}


@pytest.mark.parametrize("place", ["whole", "chunked"], indirect=True)
def test_a_cache_of_blocks_downloads_whole_files_once_from_a_server_without_ranges_regression(
    place: Place, file: Path, tmp_path: Path
) -> None:
    """It read a small file in one process, and raised in those that began meanwhile."""
    folder, right = tmp_path / "cache", expected("", file)
    assert digests([started("", place, "blockcache", folder, file) for _ in range(PROCESSES)]) == [right] * PROCESSES
    assert place.proxy is not None
    assert place.proxy.passed_bytes < 1.5 * file.stat().st_size


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("place", ["http"], indirect=True)
def test_a_process_that_is_killed_leaves_nothing_that_others_read(
    cache: str, place: Place, file: Path, tmp_path: Path
) -> None:
    folder, right = tmp_path / "cache", expected("", file)
    killed, waiting = (started("", place, cache, folder, file) for _ in range(2))
    go(killed)
    wait_for(lambda: sum(each.stat().st_blocks * 512 for each in folder.glob(".*-draft")) > 1 << 20)
    go(waiting)
    killed.kill()
    killed.communicate()
    output, errors = waiting.communicate(timeout=100)
    assert (waiting.returncode, output.strip()) == (0, right), errors
    assert digests([started("", place, cache, folder, file)]) == [right]
    assert {each.stat().st_size for each in copies(folder)} == {file.stat().st_size}


def load(cache: str, uri: str, folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    named = {"cache_storage": str(folder), "skip_instance_cache": True, **options}
    return streamer.load(f"{cache}::{uri}", storage_options={cache: named})


def assert_right(tensors: dict[str, torch.Tensor]) -> None:
    assert all(tensors[name].equal(tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("cut", [b"", b'{"x": {"fn": "y"}}'])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_record_that_was_cut_is_a_miss_regression(
    cache: str, cut: bytes, file: Path, tmp_path: Path, is_inside: bool
) -> None:
    folder = tmp_path / "cache"
    assert_right(load(cache, f"file://{file}", folder))
    (folder / "cache").write_bytes(cut)
    if is_inside:
        options: dict[str, Any] = {cache: {"cache_storage": str(folder), "skip_instance_cache": True}}
        with fsspec.open(f"streamer::{cache}::file://{file}", **options) as opened:
            assert opened.read() == file.read_bytes()
    assert_right(load(cache, f"file://{file}", folder))


@pytest.mark.parametrize("cache", CACHES)
def test_a_copy_of_another_size_than_the_file_has_is_a_miss_regression(cache: str, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert_right(load(cache, f"file://{file}", folder))
    (copy,) = copies(folder)
    os.truncate(copy, 1000)
    assert_right(load(cache, f"file://{file}", folder))
    save_file({"new": torch.ones(3)}, file)
    assert load(cache, f"file://{file}", folder)["new"].equal(torch.ones(3))


@pytest.mark.parametrize("share", [0, 0.5, None], ids=["empty", "half", "missing"])
@pytest.mark.parametrize("cache", ["filecache", "blockcache"])
def test_a_broken_record_costs_a_download_at_most_regression(
    cache: str, share: float | None, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    record = folder / "cache"
    assert_right(load(cache, f"file://{file}", folder))
    (entry,) = json.loads(record.read_bytes()).values()  # fsspec itself finds the copy, too
    assert (folder / entry["fn"]).read_bytes() == file.read_bytes()
    if share is None:
        record.unlink()
    else:
        record.write_bytes(record.read_bytes()[: int(record.stat().st_size * share)])
    assert_right(load(cache, f"file://{file}", folder))
    assert next(iter(json.loads(record.read_bytes()).values()))["fn"] == entry["fn"]


def test_what_fsspec_keeps_of_blocks_may_have_holes_regression(file: Path, tmp_path: Path) -> None:
    """If a process whose record is from before opens the file, fsspec empties it, and keeps the record of others."""
    folder = tmp_path / "cache"
    fs = fsspec.filesystem("blockcache", fs=LocalFileSystem(), cache_storage=str(folder))
    holes = Path(cached_file_name(fs, str(file)))
    holes.touch()
    os.truncate(holes, file.stat().st_size)
    entry = {"original": str(file), "fn": holes.name, "blocks": True, "time": time.time(), "uid": fs.ukey(str(file))}
    (folder / "cache").write_text(json.dumps({str(file): entry}))
    assert_right(load("blockcache", f"file://{file}", folder))


def test_a_copy_that_another_program_rewrites_meanwhile_is_an_error(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert_right(load("filecache", f"file://{file}", folder))
    (copy,) = copies(folder)
    options = {"filecache": {"cache_storage": str(folder)}}
    small = streamer.Options(memory_limit_bytes=1 << 20, block_bytes=1 << 20)
    with streamer.stream(f"filecache::file://{file}", storage_options=options, options=small) as tensors:
        next(iter(tensors))
        with open(copy, "r+b") as written:
            written.write(bytes(file.stat().st_size))
        with pytest.raises(streamer.ChangedError, match="Another program wrote"):
            dict(tensors)


@pytest.mark.parametrize("cache", CACHES)
def test_a_file_that_is_replaced_while_it_comes_into_the_cache_is_not_kept(
    cache: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, name = LocalFileSystem.get_file, "get_file" if cache != "blockcache" else "cat_file"

    def replaced(self: LocalFileSystem, *arguments: Any, **named: Any) -> Any:
        answer = (real if name == "get_file" else cat)(self, *arguments, **named)
        save_file({key: tensor + 1 for key, tensor in TENSORS.items()}, file)
        return answer

    cat = LocalFileSystem.cat_file
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, name, replaced)
        with pytest.raises(streamer.ChangedError):
            load(cache, f"file://{file}", tmp_path / "cache")
    assert load(cache, f"file://{file}", tmp_path / "cache")["t1"].equal(TENSORS["t1"] + 1)


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_a_cache_that_decompresses_reports_the_size_of_its_copy_regression(
    cache: str, file: Path, tmp_path: Path
) -> None:
    with fsspec.open(f"{file}.gz", "wb", compression="gzip") as packed:
        packed.write(file.read_bytes())
    (tmp_path / "model.safetensors.gz").rename(tmp_path / "packed.safetensors")
    assert_right(load(cache, f"file://{tmp_path}/packed.safetensors", tmp_path / "cache", compression="gzip"))


@pytest.mark.parametrize("cache", CACHES)
def test_a_copy_that_is_too_old_is_a_miss(cache: str, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    load(cache, f"file://{file}", folder)
    (copy,) = copies(folder)
    first = copy.stat().st_ino
    assert_right(load(cache, f"file://{file}", folder))
    assert copies(folder)[0].stat().st_ino == first
    if cache != "simplecache":  # which has no such rule
        for each in folder.iterdir():
            os.utime(each, (0, 0))
        assert_right(load(cache, f"file://{file}", folder, expiry_time=0.001))
        assert copies(folder)[0].stat().st_ino != first


@pytest.mark.parametrize("cache", ["filecache", "blockcache"])
def test_a_copy_of_another_version_is_a_miss_where_files_are_checked(cache: str, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    load(cache, f"file://{file}", folder, check_files=True)
    save_file({key: tensor + 1 for key, tensor in TENSORS.items()}, file)
    assert load(cache, f"file://{file}", folder, check_files=True)["t1"].equal(TENSORS["t1"] + 1)


def of_number(number: float) -> bytes:
    return save({"w": torch.full((300,), float(number))})


# What the second load asks for beside the URL of the first: its path, its options, and the version of the answer.
ASKED = {
    "version": ("1", {}, '"v2"', 1),
    "time": ("1", {}, None, 2),
    "weak version": ("1", {}, 'W/"v2"', 1),
    "headers": ("1", {"headers": {"X-Tenant": "2"}}, '"v1"', 1),
    "login": ("1", {"client_kwargs": {"headers": {"Authorization": "2"}}}, '"v1"', 1),
    "cookies": ("1", {"cookies": {"tenant": "2"}}, '"v1"', 1),
    "folder": ("2", {}, '"v1"', 1),
}


@each_row("what", ASKED)
@each_row("cache", CACHES)
def test_a_copy_is_of_one_version_and_one_login_regression(cache: str, what: str, tmp_path: Path) -> None:
    """Files of equal size took the copy of one another, whatever their versions were."""
    path, options, version, day = ASKED[what]
    asked = [("1", {}, '"v1"' if version else None, 1), (path, options, version, day)]

    def script(request: Request, answer: Answer) -> None:
        body = of_number(number)
        answer.become(206, body[request.begin : request.end])
        answer.headers["Content-Range"] = f"bytes {request.begin}-{request.end - 1}/{len(body)}"
        answer.headers["Last-Modified"] = f"Thu, 0{asked[number][3]} Jan 2026 00:00:00 GMT"
        answer.headers |= {"ETag": asked[number][2]} if asked[number][2] else {}

    same_names = {"same_names": True} if cache != "blockcache" else {}
    number, seen = 0, []
    with ScriptedServer(of_number(0), script) as server:
        server.answers_head = True
        for number in (0, 1, 1):
            uri = f"{cache}::{server.url}/{asked[number][0]}/a.safetensors"
            storage = {cache: {"cache_storage": str(tmp_path), **same_names}, "http": asked[number][1]}
            assert streamer.load(uri, storage_options=storage)["w"][0] == number
            seen.append({each.stat().st_ino for each in copies(tmp_path)})
    assert seen[2] == seen[1]  # the copy was read the second time


@each_row("keeps_attributes", [True, False])
@each_row("cache", CACHES)
def test_a_copy_is_of_one_endpoint_regression(
    cache: str, keeps_attributes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    if not keeps_attributes:
        monkeypatch.setattr(os, "setxattr", refuse)
    with one_file(data=of_number(0)) as first, one_file(data=of_number(1)) as second:
        for number, server in enumerate((first, second, second)):
            server.answers_head = True
            uri, options = place_of("s3", server)
            storage = {"s3": options, cache: {"cache_storage": str(tmp_path)}}
            assert streamer.load(f"{cache}::{uri}", storage_options=storage)["w"][0] == min(number, 1)


def test_a_copy_that_another_program_has_made_is_used_if_its_size_is_right(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with fsspec.open(f"simplecache::file://{file}", simplecache={"cache_storage": str(folder)}) as opened:
        opened.read()
    (copy,) = copies(folder)
    before = copy.stat().st_ino
    assert_right(load("simplecache", f"file://{file}", folder))
    assert [each.stat().st_ino for each in copies(folder)] == [before]
