"""Whatever a listing or an index names, nothing is written outside of the private folder that a library loads from."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fsspec.implementations.memory import MemoryFileSystem

import streamer
from streamer.integrations.diffusers.pipeline_folder import PipelineFolder
from streamer.integrations.library_calls import Location
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import DIFFUSERS

NAMES = [
    "../outside.json",
    "../../outside.json",
    "sub/../../outside.json",
    "sub/inside.json",
    "/outside.json",
    "..",
    ".",
    "",
    "a\0b.json",
    "..json",
    "C:\\outside.json",
    "..\\outside.json",
]


class Listing(MemoryFileSystem):
    """A file system that lists, in each folder, files of all of these names."""

    cachable = False
    store: dict[str, object] = {}  # noqa: RUF012  fsspec's, of each class

    def ls(self, path, detail=True, **others):
        found = super().ls(path, detail=True, **others)
        folder = path.rstrip("/")
        return found + [{"name": f"{folder}/{name}", "size": 2, "type": "file"} for name in NAMES]

    def info(self, path, **others):
        return super().info(path, **others) if self.exists(path) else {"name": path, "size": 2, "type": "file"}

    def cat_file(self, path, start=None, end=None, **others):
        return super().cat_file(path, start, end, **others) if self.exists(path) else b"{}"[start:end]

    def exists(self, path, **others):
        return path.strip("/") in {name.strip("/") for name in self.store}


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A folder with a neighbour: what is made in it must stay in it."""
    (tmp_path / "private").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    return tmp_path / "private"


def hostile_folder(*folders, **files):
    fs = Listing()
    weights = safetensors.torch.save({"a": torch.ones(2)})
    for folder in folders or ("model",):
        fs.pipe_file(f"/{folder}/config.json", b"{}")
        fs.pipe_file(f"/{folder}/diffusion_pytorch_model.safetensors", weights)
    for name, content in files.items():
        fs.pipe_file(f"/model/{name}.json", json.dumps(content).encode())
    return Location(uri="memory://model", fs=fs)


def written(private):
    (folder,) = private.iterdir()
    assert sorted(private.parent.iterdir()) == [private]
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_names_of_a_listing(private):
    with closing(ModelFolder(hostile_folder(), naming=DIFFUSERS)) as folder:
        assert Path(folder.path).parent == private
        assert {"config.json", "diffusion_pytorch_model.safetensors"} <= written(private)
        assert all("/" not in name for name in written(private))


def test_names_of_a_listing_of_a_pipeline(private):
    location = hostile_folder("model/unet", "model", model_index={"unet": ["diffusers", "UNet2DModel"]})
    with closing(PipelineFolder(location)):
        assert {"model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors"} <= written(private)
        assert all(name.count("/") <= name.startswith("unet/") for name in written(private))


@pytest.mark.parametrize("shard", ["../x.safetensors", "/x.safetensors", "a/../../x.safetensors", "..\\x.safetensors"])
@pytest.mark.parametrize("index", ["", ".fp16"])
def test_names_of_an_index(private, shard, index):
    variant = index.removeprefix(".") or None
    files = {f"diffusion_pytorch_model.safetensors.index{index}": {"weight_map": {"a": shard}}}
    location = hostile_folder(**files)
    if variant:
        content = safetensors.torch.save({"a": torch.ones(2)})
        location.fs.pipe_file("/model/diffusion_pytorch_model.fp16-00001-of-00001.safetensors", content)
    with pytest.raises(streamer.ShardIndexError):
        ModelFolder(location, naming=DIFFUSERS, variant=variant)
    assert not list(private.iterdir())
    assert sorted(private.parent.iterdir()) == [private]
