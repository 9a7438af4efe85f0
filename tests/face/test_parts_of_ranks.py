"""Files in which torch's writer saved the part of one rank are not loaded as if their tensors were whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from each_row import each_row
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

import streamer
from streamer._cli import main

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

WHOLE = {"w": torch.arange(36.0).reshape(6, 6), "b": torch.arange(3.0)}


def saved_by_ranks(folder: Path, dim: int, ranks: int = 3) -> list[Path]:
    """Write what torch's writer writes with ``save_distributed=True``: `w` in parts, `b` by the last rank alone."""
    files, begin = [], 0
    for rank, part in enumerate(WHOLE["w"].chunk(ranks, dim), start=1):
        offsets = {"w": [begin, 0] if dim == 0 else [0, begin]} | ({"b": [0]} if rank == ranks else {})
        tensors = {"w": part.contiguous()} | ({"b": WHOLE["b"]} if rank == ranks else {})
        said = {name: {"saved_offsets": each} for name, each in offsets.items()}
        files.append(folder / f"shard-{rank:05d}-model-00001-of-00001.safetensors")
        save_file(tensors, files[-1], {"DCP_SHARDING_INFO": json.dumps(said), "format": "pt"})
        begin += part.shape[dim]
    return files


def opened(uri: Any) -> None:
    with streamer.open(uri) as checkpoint:
        checkpoint.get_tensors()


def streamed(uri: Any) -> None:
    with streamer.stream(uri) as stream:
        dict(stream)


def copied(uri: Any) -> None:
    with streamer.open(uri) as checkpoint:
        streamer.save(checkpoint, "memory://copy-of-a-part")


VERBS: dict[str, Callable[[Any], Any]] = {
    "load": streamer.load,
    "stream": streamed,
    "open": opened,
    "load_into": lambda uri: streamer.load_into(uri, {"w": torch.empty(2, 4)}, strict=False),
    "copy": copied,
}
NAMED: dict[str, Callable[[Sequence[Path]], Any]] = {
    "all, by the folder": lambda files: files[0].parent,
    "all, by a list": list,
    "all, by a pattern": lambda files: f"{files[0].parent}/*.safetensors",
    "one of them": lambda files: files[1],
    "two of them": lambda files: files[1:],
}


@each_row("dim", [0, 1])
@each_row("named", sorted(NAMED))
@each_row("verb", sorted(VERBS))
def test_the_part_of_a_rank_is_no_tensor_regression(tmp_path: Path, verb: str, named: str, dim: int) -> None:
    uri = NAMED[named](saved_by_ranks(tmp_path, dim))
    with pytest.raises(streamer.FormatError, match=r"'w' is the part of one rank.*streamer.dcp.StorageReader"):
        VERBS[verb](uri)


def test_check_and_the_command_line_refuse_it_regression(tmp_path: Path) -> None:
    saved_by_ranks(tmp_path, 0)
    result = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert result.exit_code == 65
    assert "is the part of one rank" in result.output


def test_dcp_puts_the_parts_together_as_the_error_says(tmp_path: Path) -> None:
    saved_by_ranks(tmp_path, 1)
    state = {name: torch.zeros_like(each) for name, each in WHOLE.items()}
    dcp.load(state, storage_reader=streamer.dcp.StorageReader(tmp_path), no_dist=True)
    assert all(torch.equal(state[name], each) for name, each in WHOLE.items())


@pytest.mark.parametrize("verb", ["load", "check"])
def test_the_first_rank_alone_is_loaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    files = saved_by_ranks(tmp_path, 0)
    for file in files[1:]:
        file.unlink()
    said = "if files of other ranks are missing, tensors are parts"
    if verb == "load":
        assert streamer.load(tmp_path).keys() == {"w"}
        assert said in caplog.text
    else:
        assert said in CliRunner().invoke(main, ["check", str(tmp_path)]).stdout


@pytest.mark.parametrize(
    "how", [{}, {"save_distributed": True}, {"save_distributed": True, "enable_consolidation": True}]
)
def test_what_one_process_saves_is_whole(tmp_path: Path, how: dict[str, Any]) -> None:
    dcp.save(WHOLE, storage_writer=HuggingFaceStorageWriter(str(tmp_path), **how), no_dist=True)
    loaded = streamer.load(tmp_path)
    assert loaded.keys() == WHOLE.keys()
    assert all(torch.equal(loaded[name], each) for name, each in WHOLE.items())


@each_row("text", ["{", "[]", "3", "null", '{"w": 3}', '{"w": {"saved_offsets": "1"}}', "[" * 9999])
def test_another_value_under_the_name_of_the_part_ends_no_load(tmp_path: Path, text: str) -> None:
    save_file(WHOLE, tmp_path / "model.safetensors", {"DCP_SHARDING_INFO": text})
    assert streamer.load(tmp_path).keys() == WHOLE.keys()
