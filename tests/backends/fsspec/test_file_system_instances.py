"""``fs=``: a file system the caller made is read natively where a backend of ours would have made it."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import ReferenceFileSystem
from s3fs import S3FileSystem

import streamer
from streamer.backends.fsspec.store import FsspecStore
from streamer.backends.posix.store import PosixStore
from streamer.backends.s3.store import S3Store
from streamer.core.errors import OptionError
from streamer.core.store.sources import HttpSource, ObjectInfo
from streamer.plugins import open_store


class OwnS3(S3FileSystem):  # what it changes, only it knows
    """A class of the caller's."""


def test_a_local_file_system_is_read_natively(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), fs=LocalFileSystem())
    assert isinstance(store, PosixStore)
    assert store.root == str(tmp_path)


@pytest.mark.parametrize("uri", ["bucket/key", "s3://bucket/key"])
def test_an_s3_file_system_is_read_natively_with_its_own_options(uri: str) -> None:
    store = open_store(uri, fs=S3FileSystem(anon=True, endpoint_url="http://127.0.0.1:1"))
    assert isinstance(store, S3Store)
    assert store.root == "bucket/key"
    source = store.source(ObjectInfo("bucket/key", "s3://bucket/key", 1))
    assert isinstance(source, HttpSource)
    assert source.url.startswith("http://127.0.0.1:1/bucket/key")


def test_an_s3_file_system_made_for_coroutines_is_read_natively_too() -> None:
    assert isinstance(open_store("bucket/key", fs=S3FileSystem(anon=True, asynchronous=True)), S3Store)


@pytest.mark.parametrize(
    "fs",
    [
        MemoryFileSystem(),
        OwnS3(anon=True),
        S3FileSystem(True),  # positional arguments are not told apart from here
        DirFileSystem("/tmp", LocalFileSystem()),
        fsspec.filesystem("simplecache", target_protocol="memory"),
    ],
    ids=lambda fs: type(fs).__name__,
)
def test_any_other_file_system_is_read_through_its_own_methods(fs: fsspec.AbstractFileSystem) -> None:
    assert isinstance(open_store("a/b", fs=fs), FsspecStore)


def test_a_file_system_made_for_coroutines_is_read_through_its_twin(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    target = LocalFileSystem()
    fs = ReferenceFileSystem({"k": [str(tmp_path / "a"), 2, 4]}, fs=target, asynchronous=True)
    store = open_store("k", fs=fs)
    assert store.info("k").size_bytes == 4


def test_options_beside_an_instance_are_refused() -> None:
    with pytest.raises(OptionError, match="fs= has options of its own"):
        open_store("a", {"key": 1}, fs=MemoryFileSystem())


def test_a_checkpoint_loads_through_an_instance(checkpoint: Path) -> None:
    fs = MemoryFileSystem()
    fs.put(str(checkpoint), "/instance/", recursive=True)
    loaded = streamer.load("/instance/model", fs=fs)
    expected = streamer.load(checkpoint)
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
