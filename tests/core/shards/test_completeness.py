"""A load is every tensor of every shard, or an error; and it leaves the process as it found it."""

from __future__ import annotations

import gc
import json
import locale
import logging
import os
import signal
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from servers.seaweedfs import SeaweedServer

import streamer

FIRST, LAST = {"a": torch.arange(9.0)}, {"z": torch.arange(5)}


def sharded(folder: Path, *shards: dict[str, torch.Tensor], index: dict[str, str] | None = None) -> Path:
    for number, tensors in enumerate(shards):
        save_file(tensors, folder / f"model-{number}.safetensors")
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def test_an_empty_shard_drops_no_other(tmp_path: Path) -> None:
    loaded = streamer.load(sharded(tmp_path, FIRST, {}, LAST))
    assert list(loaded) == ["a", "z"]
    assert torch.equal(loaded["z"], LAST["z"])


def test_an_empty_shard_of_an_index_drops_no_other(tmp_path: Path) -> None:
    folder = sharded(tmp_path, FIRST, {}, LAST, index={"a": "model-0.safetensors", "z": "model-2.safetensors"})
    assert list(streamer.load(folder)) == ["a", "z"]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 0)])
def test_an_empty_tensor_is_delivered(shape: tuple[int, ...], tmp_path: Path) -> None:
    loaded = streamer.load(sharded(tmp_path, FIRST, {"empty": torch.empty(shape)}, LAST))
    assert list(loaded) == ["a", "empty", "z"]
    assert loaded["empty"].shape == shape


def test_a_scalar_and_a_tensor_of_one_byte_are_delivered(tmp_path: Path) -> None:
    save_file({"scalar": torch.tensor(7.0), "byte": torch.tensor([3], dtype=torch.uint8)}, tmp_path / "a.safetensors")
    loaded = streamer.load(tmp_path)
    assert (loaded["scalar"].item(), loaded["byte"].item()) == (7.0, 3)


def test_a_shard_that_is_named_twice_is_called_that(tmp_path: Path) -> None:
    shard = sharded(tmp_path, FIRST) / "model-0.safetensors"
    with pytest.raises(streamer.FormatError, match=r"model-0\.safetensors: the same shard is named twice"):
        streamer.load([shard, shard])


def test_a_tensor_that_the_index_promises_and_no_shard_holds_is_an_error(tmp_path: Path) -> None:
    folder = sharded(tmp_path, FIRST, index={"a": "model-0.safetensors", "lost": "model-0.safetensors"})
    with pytest.raises(streamer.ShardIndexError, match="lost"):
        streamer.load(folder)


def test_a_tensor_that_lies_in_another_shard_than_the_index_says_is_an_error(tmp_path: Path) -> None:
    folder = sharded(tmp_path, FIRST, LAST, index={"a": "model-1.safetensors", "z": "model-1.safetensors"})
    with pytest.raises(streamer.ShardIndexError, match="'a'"):
        streamer.load(folder)


def test_a_shard_that_the_index_names_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    folder = sharded(tmp_path, FIRST, index={"a": "model-0.safetensors", "z": "model-9.safetensors"})
    with pytest.raises(streamer.ObjectNotFoundError, match=r"model-9\.safetensors"):
        streamer.load(folder)


def test_a_shard_replaced_between_its_header_and_its_data_is_an_error(tmp_path: Path) -> None:
    folder = sharded(tmp_path, FIRST, LAST)
    with streamer.open(folder) as checkpoint:
        save_file({"z": torch.arange(5) + 1}, folder / "new")
        (folder / "new").rename(folder / "model-1.safetensors")
        with pytest.raises(streamer.ChangedError, match=r"model-1\.safetensors"):
            checkpoint.get_tensors()


def state_of_the_process() -> tuple[object, ...]:
    names = set(logging.root.manager.loggerDict) & {"streamer"}
    return (
        dict(os.environ),
        os.getcwd(),
        os.umask(os.umask(0)),
        locale.setlocale(locale.LC_ALL),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM)],
        list(logging.root.handlers),
        logging.root.level,
        names,
        [handler for name in names for handler in logging.getLogger(name).handlers],
        list(warnings.filters),
        (gc.isenabled(), gc.get_threshold()),
        torch.get_num_threads(),
    )


def test_a_load_prints_nothing_and_changes_no_global_state(
    s3_checkpoint: str, s3_server: SeaweedServer, checkpoint: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    streamer.load(s3_checkpoint, storage_options=s3_server.storage_options())  # imports of s3fs are not a load
    module = torch.nn.Linear(3, 2)
    capfd.readouterr()
    before = state_of_the_process()
    streamer.load(s3_checkpoint, storage_options=s3_server.storage_options())
    streamer.load(checkpoint)
    streamer.save(module, tmp_path / "saved")
    streamer.write_manifest(tmp_path / "saved")
    streamer.load_into(tmp_path / "saved", module, verify="manifest")
    with streamer.open(checkpoint) as opened:
        opened.get_tensors()
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(checkpoint / "missing")
    assert state_of_the_process() == before
    assert capfd.readouterr() == ("", "")


def test_a_tensor_that_the_index_leaves_out_is_loaded_with_its_shard(tmp_path: Path) -> None:
    folder = sharded(tmp_path, FIRST | {"more": torch.ones(2)}, LAST, index={"a": "model-0.safetensors"})
    assert list(streamer.load(folder)) == ["a", "more"]


def test_a_stream_that_ends_too_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However that came about: nothing is silently left out."""
    with streamer.stream(sharded(tmp_path, FIRST, LAST), order="file", progress=False) as stream:
        monkeypatch.setattr("streamer.core.engine.session.ReadSession.next_items", lambda _, enough_bytes=0: [])
        with pytest.raises(streamer.EngineError, match="0 tensors of 2 were delivered"):
            list(stream)


def test_a_closed_checkpoint_reads_nothing_more(tmp_path: Path) -> None:
    with streamer.open(sharded(tmp_path, FIRST)) as checkpoint:
        assert list(checkpoint.get_tensors(progress=False)) == ["a"]
    with pytest.raises(streamer.UsageError, match="closed"):
        checkpoint.get_tensors()
