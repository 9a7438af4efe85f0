"""``fs=``: a file system the caller made is read natively where a backend of ours would have made it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import diffusers
import fsspec
import numpy as np
import pytest
import s3fs
import torch
import transformers
from each_row import each_row
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import ReferenceFileSystem
from s3fs import S3FileSystem
from safetensors.numpy import save

import streamer
import streamer.integrations.accelerate as our_accelerate
import streamer.integrations.diffusers as our_diffusers
import streamer.integrations.transformers as our_transformers
from streamer.backends.fsspec.store import FsspecStore
from streamer.backends.posix.store import PosixStore
from streamer.backends.s3.store import S3Store
from streamer.core.errors import OptionError
from streamer.core.store.sources import HttpSource, ObjectInfo
from streamer.integrations.dcp.hugging_face import HuggingFaceStorageReader
from streamer.integrations.dcp.reader import StorageReader
from streamer.integrations.fsspec.file_system import StreamerFileSystem
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


# --- A file system given with `fs=` for a URL of another storage: one error that names both, before any request -----

URL = "gs://bucket/model"


def streamed(fs: Any) -> None:
    with streamer.stream(URL, fs=fs) as stream:
        dict(stream)


def dispatched(fs: Any) -> None:
    with accelerate.init_empty_weights():
        model = torch.nn.Linear(1, 1)
    our_accelerate.load_checkpoint_and_dispatch(model, URL, fs=fs)


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "load": lambda fs: streamer.load(URL, fs=fs),
    "a list": lambda fs: streamer.load([URL], fs=fs),
    "stream": streamed,
    "open": lambda fs: streamer.open(URL, fs=fs),
    "load_into": lambda fs: streamer.load_into(URL, {"a": torch.zeros(1)}, fs=fs),
    "aload": lambda fs: asyncio.run(streamer.aload(URL, fs=fs)),
    "write_manifest": lambda fs: streamer.write_manifest(URL, fs=fs),
    "dcp": lambda fs: StorageReader(URL, fs=fs).read_metadata(),
    "dcp of the Hub": lambda fs: HuggingFaceStorageReader(URL, fs=fs).read_metadata(),
    "streamer:: open": lambda fs: StreamerFileSystem(fs=fs).open(URL),
    "streamer:: ls": lambda fs: StreamerFileSystem(fs=fs).ls(URL),
    "transformers": lambda fs: our_transformers.from_pretrained(transformers.AutoModel, URL, fs=fs),
    "accelerate": lambda fs: our_accelerate.load_checkpoint_in_model(torch.nn.Linear(1, 1), URL, fs=fs),
    "accelerate, dispatched": dispatched,
    "diffusers": lambda fs: our_diffusers.from_pretrained(diffusers.UNet2DModel, URL, fs=fs),
    "diffusers, a file": lambda fs: our_diffusers.from_single_file(
        diffusers.UNet2DConditionModel, f"{URL}/a.safetensors", fs=fs
    ),
}


@each_row("entry", ENTRIES)
def test_every_entry_names_both_storages_regression(entry: str) -> None:
    """The file system took the URL for a path, and said that it failed, or that a bucket named "gs:" is missing."""
    fs = s3fs.S3FileSystem(key="k", secret="s", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(streamer.OptionError, match=r"gs://.*S3FileSystem.*s3://") as caught:
        ENTRIES[entry](fs)
    assert URL in str(caught.value)


@pytest.mark.parametrize(
    ("url", "of"),
    [
        ("s3://bucket/model", "memory"),
        ("hf://owner/name", "file"),
        ("https://host/model", "memory"),
        ("simplecache::s3://bucket/model", "memory"),
        ("ftp://host/model", "memory"),
    ],
)
def test_every_known_scheme_is_distinguished_from_file_systems(url: str, of: str) -> None:
    with pytest.raises(streamer.OptionError, match=f"reads .*{of}://"):
        streamer.load(url, fs=fsspec.filesystem(of))


def test_a_file_system_around_another_reads_urls_of_both() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/both/a.safetensors", save({"a": np.ones(2)}))
    cache = fsspec.filesystem("simplecache", fs=memory)
    for url in ("memory://both/a.safetensors", "simplecache://both/a.safetensors", "/both/a.safetensors"):
        assert streamer.load(url, fs=cache, framework="np")["a"].tolist() == [1.0, 1.0]
    with pytest.raises(streamer.OptionError, match="reads memory:// and simplecache://"):
        streamer.load("s3://both/a.safetensors", fs=cache)
