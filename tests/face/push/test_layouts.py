"""Layouts before and after: what is written to a folder is what its readers take, or it is refused and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from each_row import each_row
from safetensors.numpy import save_file
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._cli import main
from streamer.compat.safetensors.torch import save_file as compat_save_file
from streamer.core.shards.other_weights import in_the_way

Tensors = dict[str, np.ndarray[Any, Any]]


def tensors(value: float) -> Tensors:
    return {name: np.full(100, value, "f4") for name in "ab"}


def usual(folder: Path, value: float, **how: Any) -> None:
    streamer.save(tensors(value), folder, progress=False, **how)


def without_index(folder: Path, value: float, shards: int) -> None:
    streamer.save({name: np.full(100, value, "f4") for name in "abcd"[:shards]}, folder, max_shard_bytes=400)
    for name in ("model.safetensors.index.json", "model.safetensors.manifest.json"):
        (folder / name).unlink()


def named(folder: Path, value: float, name: str) -> None:
    folder.mkdir(parents=True)
    if name.endswith(".safetensors"):
        save_file(tensors(value), folder / name)
    elif name.endswith(".npz"):
        np.savez(folder / name, **tensors(value))
    else:
        torch.save({key: torch.from_numpy(each) for key, each in tensors(value).items()}, folder / name)


LAYOUTS: dict[str, Callable[[Path, float], None]] = {
    "nothing": lambda folder, value: None,
    "one file": usual,
    "one file and no manifest": lambda folder, value: usual(folder, value, digests=False),
    "shards": lambda folder, value: usual(folder, value, max_shard_bytes=400),
    "shards, encrypted": lambda folder, value: usual(folder, value, max_shard_bytes=400, key=bytes(range(32))),
    "two without index": lambda folder, value: without_index(folder, value, 2),
    "three without index": lambda folder, value: without_index(folder, value, 3),
    "other.safetensors": lambda folder, value: named(folder, value, "other.safetensors"),
    "consolidated": lambda folder, value: named(folder, value, "consolidated.safetensors"),
    "model.fp16": lambda folder, value: named(folder, value, "model.fp16.safetensors"),
    "bin": lambda folder, value: named(folder, value, "pytorch_model.bin"),
    "pth": lambda folder, value: named(folder, value, "consolidated.00.pth"),
    "npz": lambda folder, value: named(folder, value, "weights.npz"),
}
# The orders in which transformers and diffusers look for files.
FIRST = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def values(uri: str, options: dict[str, Any]) -> set[float]:
    loaded = streamer.load(uri, storage_options=options, progress=False, key=None)
    return {float(value) for tensor in loaded.values() for value in tensor.unique()}


def run(*words: str, **options: Any) -> Result:
    more = [each for name, value in options.items() for each in (f"--{name.replace('_', '-')}", json.dumps(value))]
    return CliRunner().invoke(main, [*words, *more, "--quiet"])


def chosen_first(names: set[str]) -> str | None:
    return next((each for each in FIRST if each in names), None)


def check_new(done: Result, to: str, options: dict[str, Any], new: Path, after: set[str]) -> None:
    """Either the command refused, and named a file, or readers take the new files."""
    if done.exit_code:
        assert "there already: '" in done.output or "another file is there" in done.output, done.output
        return
    with suppress(streamer.EncryptionKeyError):
        assert values(to, options) == {2.0}
    first = chosen_first(after)
    assert first is None or (new / first).exists(), first


@each_row("new", [each for each in LAYOUTS if each != "nothing"])
@each_row("old", LAYOUTS)
def test_a_folder_gives_what_was_pushed_or_pulled_last_or_it_was_refused(old: str, new: str, tmp_path: Path) -> None:
    LAYOUTS[new](tmp_path / "new", 2)
    for verb in ("push", "pull"):
        to = tmp_path / verb
        LAYOUTS[old](to, 1)
        done = run(verb, str(tmp_path / "new"), str(to))
        check_new(done, str(to), {}, tmp_path / "new", {each.name for each in to.iterdir()})
        assert old != "nothing" or not done.exit_code, done.output
        if "are there already" in done.output or "there already: '" in done.output:
            replaced = run(verb, str(tmp_path / "new"), str(to), "--replace")
            check_new(replaced, str(to), {}, tmp_path / "new", {each.name for each in to.iterdir()})


@pytest.mark.parametrize(("old", "new"), [("shards", "one file"), ("one file", "bin"), ("one file", "shards")])
def test_an_object_store_is_no_other_folder(old: str, new: str, s3_server: SeaweedServer, tmp_path: Path) -> None:
    options, to = s3_server.storage_options(), f"s3://private/layouts-{tmp_path.name}"
    LAYOUTS[old](tmp_path / "old", 1)
    LAYOUTS[new](tmp_path / "new", 2)
    assert not run("push", str(tmp_path / "old"), to, storage_options=options).exit_code
    refused = run("push", str(tmp_path / "new"), to, storage_options=options)
    assert refused.exit_code == 2
    assert values(to, options) == {1.0}
    assert "--replace" in refused.output


@pytest.mark.parametrize(("old", "new"), [("shards", "one file"), ("one file", "shards"), ("one file", "one file")])
def test_replace_removes_the_older_checkpoint_alone(old: str, new: str, tmp_path: Path) -> None:
    to = tmp_path / "to"
    LAYOUTS[old](to, 1)
    LAYOUTS[new](tmp_path / "new", 2)
    for name in ("notes.txt", "optimizer.pt"):
        (to / name).write_bytes(b"mine")
    assert not run("push", str(tmp_path / "new"), str(to), "--replace").exit_code
    assert values(str(to), {}) == {2.0}
    expected = {each.name for each in (tmp_path / "new").iterdir()} | {"notes.txt", "optimizer.pt"}
    assert {each.name for each in to.iterdir()} == expected


def test_replace_leaves_what_belongs_to_no_checkpoint_and_says_so(tmp_path: Path) -> None:
    to = tmp_path / "to"
    LAYOUTS["other.safetensors"](to, 1)
    usual(tmp_path / "new", 2)
    for verb in ("push", "pull"):
        done = run(verb, str(tmp_path / "new"), str(to), "--replace")
        assert done.exit_code == 2
        assert "'other.safetensors'" in done.output
        assert (to / "other.safetensors").exists()


def test_shards_of_the_same_names_are_not_replaced_one_by_one(tmp_path: Path) -> None:
    LAYOUTS["shards"](tmp_path / "to", 1)
    LAYOUTS["shards"](tmp_path / "new", 2)
    done = run("push", str(tmp_path / "new"), str(tmp_path / "to"), "--replace")
    assert (done.exit_code, "shards of the same names" in done.output) == (2, True)
    assert values(str(tmp_path / "to"), {}) == {1.0}


@each_row("overwrite", [False, True])
@each_row("old", ["shards", "two without index", "other.safetensors", "consolidated"])
def test_a_usual_file_is_not_saved_beside_other_weights_regression(old: str, overwrite: bool, tmp_path: Path) -> None:
    LAYOUTS[old](tmp_path, 1) if old in ("shards", "two without index") else LAYOUTS[old](tmp_path / "to", 1)
    to = tmp_path if old in ("shards", "two without index") else tmp_path / "to"
    with pytest.raises(streamer.UsageError, match="there already: '"):
        streamer.save(tensors(2), to / "model.safetensors", overwrite=overwrite, progress=False)
    with pytest.raises(streamer.UsageError, match="there already: '"):
        compat_save_file({"a": torch.ones(3)}, f"file://{to}/model.safetensors")
    assert values(str(to), {}) == {1.0}


def test_files_that_are_read_by_their_own_names_lie_beside_others(tmp_path: Path) -> None:
    usual(tmp_path / "to", 1)
    for name in ("lora.safetensors", "model.fp16.safetensors"):
        streamer.save(tensors(2), tmp_path / "to" / name, progress=False)
        assert values(str(tmp_path / "to" / name), {}) == {2.0}
    named(tmp_path / "new", 3, "style.safetensors")
    assert not run("push", str(tmp_path / "new/style.safetensors"), f"{tmp_path}/to/").exit_code


def test_a_push_in_parts_and_a_manifest_that_was_written_later_are_no_other_checkpoint(tmp_path: Path) -> None:
    new, to = tmp_path / "new", tmp_path / "to"
    usual(new, 1, max_shard_bytes=400, digests=False)
    for pattern in ("*00001-of*", "*00002-of*", "*.json"):
        done = run("push", str(new), str(to), "--include", pattern)
        assert not done.exit_code, done.output
    streamer.write_manifest(to)
    assert not run("push", str(new), str(to)).exit_code


def test_a_load_remarks_on_weights_that_the_index_does_not_name(tmp_path: Path) -> None:
    usual(tmp_path, 1, max_shard_bytes=400)
    save_file(tensors(2), tmp_path / "stray.safetensors")
    with streamer.stream(tmp_path) as stream:
        dict(stream)
    assert any("stray.safetensors" in each for each in stream.report.remarks)


def test_state_of_a_training_is_no_weights() -> None:
    state = [
        "optimizer.pt",
        "scheduler.bin",
        "training_args.bin",
        "rng_state_0.pth",
        "common.pt",
        "random_states_0.pkl",
    ]
    assert in_the_way(["pytorch_model.bin"], state) == []
    assert in_the_way(state, ["model.safetensors"]) == []
