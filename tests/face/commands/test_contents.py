"""``inspect`` and ``ls``: what is at a URI, from headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from safetensors.torch import save, save_file
from servers.scripted_http import ScriptedServer
from uploads import STORAGES, uploaded

import streamer
from streamer._cli import main

WEIGHTS = {
    **{f"layers.{number}.{part}.weight": torch.ones(4, 8) for number in range(3) for part in ("up", "down")},
    "layers.3.up.weight": torch.ones(2),
    "embed.weight": torch.ones(6, 2, dtype=torch.bfloat16),
    "scale": torch.tensor(1.0),
}


def run(*words: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def run_json(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def two_shards(folder: Path) -> Path:
    names = sorted(WEIGHTS)
    streamer.save(WEIGHTS, folder, max_shard_bytes="600", metadata={"trained": "yes"}, progress=False)
    assert len([*folder.glob("*.safetensors")]) > 1, names
    return folder


@pytest.mark.parametrize("storage", STORAGES)
def test_every_tensor_is_listed_with_its_shard(request: pytest.FixtureRequest, storage: str, tmp_path: Path) -> None:
    uri, options = uploaded(request, storage, two_shards(tmp_path / "model"))
    found = run_json("inspect", uri, "--storage-options", json.dumps(options))
    assert {each["name"]: (each["dtype"], each["shape"], each["bytes"]) for each in found["tensors"]} == {
        name: ("BF16" if each.dtype == torch.bfloat16 else "F32", [*each.shape], each.nbytes)
        for name, each in WEIGHTS.items()
    }
    shards = {each["name"] for each in found["shards"]}
    assert {each["shard"] for each in found["tensors"]} == shards
    assert found["bytes"] == sum(each.nbytes for each in WEIGHTS.values())
    assert found["dtypes"]["BF16"] == {"tensors": 1, "bytes": 24}
    assert found["metadata"]["trained"] == "yes"


def test_a_shard_takes_at_most_two_requests() -> None:
    with ScriptedServer(save(WEIGHTS)) as server:
        server.answers_head = True
        assert "9 tensors" in run("inspect", f"{server.url}.safetensors").stdout
        assert len(server.requests) <= 2


def test_the_tree_sums_up_modules_and_joins_those_that_are_alike(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    lines = [line.split() for line in run("inspect", tmp_path, "--tree").stdout.splitlines()]
    assert ["layers", "F32", "7", "tensors", "776", "B"] in lines
    assert ["0-2", "F32", "6", "tensors", "768", "B"] in lines
    assert ["3", "F32", "1", "tensor", "8.00", "B"] in lines
    assert lines.count(["weight", "F32", "4", "x", "8", "128", "B"]) == 2
    assert ["scale", "F32", "scalar", "4.00", "B"] in lines


def _pickled(path: Path) -> None:
    torch.save({"w": torch.ones(3, 2)}, path.with_suffix(".bin"))


def _archive(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), w=np.ones((3, 2), np.float32))


def _gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path.with_suffix(".gguf"), "llama")
    writer.add_tensor("w", np.ones((3, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _encrypted(path: Path) -> None:
    streamer.save({"w": torch.ones(3, 2)}, path.with_suffix(".safetensors"), key=bytes(32), progress=False)


@each_row(
    ("write", "format_name", "is_encrypted"),
    [
        (_pickled, "PyTorch", False),
        (_archive, "NumPy", False),
        (_gguf, "GGUF", False),
        (_encrypted, "safetensors", True),
    ],
)
def test_every_format_is_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, format_name: str, is_encrypted: bool
) -> None:
    write(tmp_path / "model")
    if is_encrypted:
        assert run("inspect", tmp_path).exit_code == 2
        monkeypatch.setenv("STREAMER_KEY", "00" * 32)
    found = run_json("inspect", tmp_path)
    assert (found["format"], found["encrypted"]) == (format_name, is_encrypted)
    assert [(each["name"], each["dtype"], each["shape"], each["bytes"]) for each in found["tensors"]] == [
        ("w", "F32", [3, 2], 24)
    ]


def test_names_alone_are_printed_if_it_is_quiet(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "model.safetensors")
    assert run("inspect", tmp_path, "--format", "quiet").stdout == "a\nb\n"
    assert run("ls", tmp_path, "--quiet").stdout == "model.safetensors\n"


@pytest.mark.parametrize("storage", STORAGES)
def test_ls_lists_files_with_their_sizes(request: pytest.FixtureRequest, storage: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "vae/config.json" if storage != "hf" else folder / "other.json").write_text("{} ")
    (folder / "notes.txt").write_text("hello")
    uri, options = uploaded(request, storage, folder)
    words = ("ls", uri, "--storage-options", json.dumps(options), "--include", "*.json")
    found = {each["name"]: each["bytes"] for each in run_json(*words)}
    other = "vae/config.json" if storage != "hf" else "other.json"  # the stand-in takes no sub-folders
    assert found == {"config.json": 2, other: 3}
    assert [line.split()[-1] for line in run(*words).stdout.splitlines()[1:]] == ["config.json", other]
    assert run("ls", tmp_path / "absent").exit_code == 66
