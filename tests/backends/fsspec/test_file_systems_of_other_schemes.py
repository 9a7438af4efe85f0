"""A file system given with `fs=` for a URL of another storage: one error that names both, before any request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from safetensors.numpy import save

import streamer
import streamer.integrations.accelerate as our_accelerate
import streamer.integrations.diffusers as our_diffusers
import streamer.integrations.transformers as our_transformers
from streamer.integrations.dcp.hugging_face import HuggingFaceStorageReader
from streamer.integrations.dcp.reader import StorageReader
from streamer.integrations.fsspec.file_system import StreamerFileSystem

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
