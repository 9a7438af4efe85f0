"""Checkpoints on file systems that have no backend of their own load bit for bit through fsspec."""

from __future__ import annotations

import asyncio
import gc
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer
from servers.sftp import PASSWORD, SftpServer

import streamer
from streamer.backends.fsspec.reads import exclusive
from streamer.backends.fsspec.store import FsspecStore
from streamer.core.store.parallel import in_parallel


def check_equal(loaded: dict[str, torch.Tensor], checkpoint: Path) -> None:
    expected = streamer.load(checkpoint)
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


@pytest.fixture
def archives(checkpoint: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as inflated:
        for path in checkpoint.iterdir():
            inflated.write(path, f"inside/{path.name}")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as packed:
        packed.add(checkpoint, "inside")
    return tmp_path


@pytest.mark.parametrize("url", ["zip://inside::{}/model.zip", "tar://inside::{}/model.tar.gz"])
def test_an_archive(url: str, archives: Path, checkpoint: Path) -> None:
    check_equal(streamer.load(url.format(f"file://{archives}")), checkpoint)


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_a_cache_over_s3(
    cache: str, s3_checkpoint: str, s3_server: SeaweedServer, checkpoint: Path, tmp_path: Path
) -> None:
    options = {"s3": s3_server.storage_options(), cache: {"cache_storage": str(tmp_path)}}
    check_equal(streamer.load(f"{cache}::{s3_checkpoint}", storage_options=options), checkpoint)


def test_an_archive_in_s3(s3_server: SeaweedServer, archives: Path, checkpoint: Path) -> None:
    s3_server.put("private", "archives/model.zip", (archives / "model.zip").read_bytes())
    url = "zip://inside::s3://private/archives/model.zip"
    check_equal(streamer.load(url, storage_options={"s3": s3_server.storage_options()}), checkpoint)


def test_an_archive_behind_a_login(http_server: NginxServer, archives: Path, checkpoint: Path) -> None:
    """A pair was a file that does not exist, as aiohttp takes ``BasicAuth`` alone."""
    (http_server.root / "behind-a-login.zip").write_bytes((archives / "model.zip").read_bytes())
    url = f"zip://inside::{http_server.http_url}/private/behind-a-login.zip"
    login = (http_server.user, http_server.password)
    for options in ({"auth": login}, {"auth": list(login)}, {"client_kwargs": {"auth": login}}):
        check_equal(streamer.load(url, storage_options={"http": options}), checkpoint)
    with pytest.raises(streamer.OptionError, match="auth must be") as caught:
        streamer.load(url, storage_options={"http": {"auth": [http_server.password]}})
    assert http_server.password not in str(caught.value)


def test_sftp(checkpoint: Path) -> None:
    with SftpServer(checkpoint.parent) as server:
        check_equal(streamer.load(server.url(checkpoint.name)), checkpoint)


def test_a_sharded_save_to_sftp_ends(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((1 << 18,), float(i)) for i in range(8)}
    with SftpServer(tmp_path) as server:
        streamer.save(tensors, server.url("m"), max_shard_bytes=1 << 20)
        loaded = streamer.load(server.url("m"))
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_sftp_with_a_wrong_password_says_so_without_it(checkpoint: Path) -> None:
    with SftpServer(checkpoint.parent) as server:
        url = server.url(checkpoint.name).replace(PASSWORD, "WRONG-CANARY")
        with pytest.raises(streamer.StreamerError) as caught:
            streamer.load(url)
    assert "CANARY" not in str(caught.value)


class SlowFileSystem(AsyncFileSystem):
    """A third party's asynchronous file system: every read waits until several are under way, as a network would."""

    protocol = "slowly"
    wanted = 4

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.local = LocalFileSystem()
        self.under_way = self.most = 0
        self.threads: set[int] = set()

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self.threads.add(threading.get_ident())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(100):  # at most a second
            if self.most >= self.wanted:
                break
            await asyncio.sleep(0.01)
        self.under_way -= 1
        data: bytes = self.local.cat_file(path, start, end)
        return data

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return dict(self.local.info(path))

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        return list(self.local.ls(path, detail))


def test_an_asynchronous_file_system_is_driven_on_its_own_loop_with_many_ranges_in_flight(checkpoint: Path) -> None:
    fs = SlowFileSystem(skip_instance_cache=True)
    check_equal(streamer.load(str(checkpoint), fs=fs, options=streamer.Options(block_bytes=1 << 20)), checkpoint)
    assert fs.most >= fs.wanted
    assert len(fs.threads) == 1


def test_a_registered_third_party_file_system_is_found_by_its_scheme(
    checkpoint: Path,
) -> None:
    fsspec.register_implementation("slowly", SlowFileSystem, clobber=True)
    check_equal(streamer.load(f"slowly://{checkpoint}"), checkpoint)


class Alone:
    """Notes each call that comes while another thread calls."""

    def __init__(self, target: Any, calls: CallsAtOnce) -> None:
        self._target, self._calls = target, calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._calls.guarded(value) if callable(value) else value

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CallsAtOnce:
    """The calls that came while another thread called."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._lock = threading.RLock()  # one call makes others

    def guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(*arguments: Any, **named: Any) -> Any:
            if not self._lock.acquire(blocking=False):
                self.seen.append(call.__name__)
                return call(*arguments, **named)
            try:
                time.sleep(0.002)
                return call(*arguments, **named)
            finally:
                self._lock.release()

        return guard


class OneCallAtATime(LocalFileSystem):
    """A file system whose connection serves one call at a time, as paramiko's."""

    protocol = "onecall"
    cachable = False
    calls = CallsAtOnce()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls.seen.clear()
        for name in ("info", "ls", "exists", "makedirs", "rm_file", "pipe_file", "open", "cat_file", "get_file"):
            setattr(self, name, self.calls.guarded(getattr(self, name)))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("onecall://")))

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **how: Any) -> Any:
        self.opened = Alone(super()._open(path, mode, block_size, **how), self.calls)
        return self.opened


class TimesInSeconds(OneCallAtATime):
    """Its files may be looked up a second time."""

    def info(self, path: str, **how: Any) -> dict[str, Any]:
        return {**super().info(path, **how), "mtime": float(int(time.time()))}


def test_young_files_are_looked_up_one_at_a_time_if_the_file_system_demands_it_regression(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abcdef"]
    for path in paths:
        Path(path).write_bytes(b"1")
    fs = TimesInSeconds()
    infos = in_parallel(FsspecStore.of_instance(fs, str(tmp_path)).info, paths, role="look")
    assert [info.path for info in infos] == paths
    assert fs.calls.seen == []


@pytest.mark.parametrize("chain", ["itself", "a folder", "a cache"])
def test_a_sharded_save_and_its_load_call_such_a_file_system_one_at_a_time_regression(
    chain: str, tmp_path: Path
) -> None:
    """Two threads that called paramiko's connection at once waited for ever, each for an answer to the other."""
    tensors = {f"t{i}": torch.full((1 << 18,), float(i)) for i in range(8)}
    fsspec.register_implementation("onecall", OneCallAtATime, clobber=True)
    streamer.save(tensors, f"onecall://{tmp_path}/m", max_shard_bytes=2 << 20)
    streamer.save(tensors, f"onecall://{tmp_path}/m", max_shard_bytes=1 << 20, overwrite=True)
    assert OneCallAtATime.calls.seen == []
    fs = OneCallAtATime()
    chains = {
        "itself": lambda: fs,
        "a folder": lambda: DirFileSystem(path="/", fs=fs),
        "a cache": lambda: SimpleCacheFileSystem(fs=fs, cache_storage=str(tmp_path / "cache")),
    }
    inside = FsspecStore.of_instance(chains[chain](), str(tmp_path / "m"))
    directly = FsspecStore.of_instance(fs, str(tmp_path / "m"))
    shards = [info.path for info in directly.find(directly.root) if info.path.endswith(".safetensors")]
    in_parallel(lambda at: [inside.info, directly.info][at % 2](shards[at // 2]), range(len(shards) * 2), role="look")
    loaded = streamer.load(str(tmp_path / "m"), fs=fs)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert fs.calls.seen == []


def test_a_file_that_is_collected_during_a_call_is_closed_after_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    fs = OneCallAtATime()
    store = FsspecStore.of_instance(fs, str(tmp_path))
    source = store.source(store.info(str(tmp_path / "a")))
    source.read_into(memoryview(bytearray(2)), 0)
    with exclusive(fs):
        del source
        gc.collect()
        assert not fs.opened.closed
    assert fs.opened.closed


def test_sftp_sends_each_request_at_once(tmp_path: Path) -> None:
    """The kernel held back the end of each request for 40 ms: 16 MB took 20 s."""
    with SftpServer(tmp_path) as server:
        streamer.save({"x": torch.ones(1)}, server.url("m"))
        fs, _ = fsspec.url_to_fs(server.url("m"))
        FsspecStore.of_instance(fs, server.url("m"))
        assert fs.client.get_transport().sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
