"""Checkpoints on file systems that have no backend of their own load bit for bit through fsspec."""

from __future__ import annotations

import asyncio
import tarfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer
from servers.sftp import PASSWORD, SftpServer

import streamer
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


class OneCallAtATime(LocalFileSystem):
    """A file system whose connection serves one call at a time, as paramiko's."""

    protocol = "onecall"
    cachable = False
    is_busy = False

    def info(self, path: str, **how: Any) -> dict[str, Any]:
        assert not type(self).is_busy
        type(self).is_busy = True
        time.sleep(0.01)
        type(self).is_busy = False
        return {**super().info(path, **how), "mtime": float(int(time.time()))}


def test_young_files_are_looked_up_one_at_a_time_if_the_file_system_demands_it_regression(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abcdef"]
    for path in paths:
        Path(path).write_bytes(b"1")
    store = FsspecStore.of_instance(OneCallAtATime(), str(tmp_path))
    infos = in_parallel(store.info, paths, role="look")
    assert [info.path for info in infos] == paths
