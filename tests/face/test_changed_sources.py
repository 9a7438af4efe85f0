"""A source that changes behind the reader's back: no copy is made of two checkpoints."""

from __future__ import annotations

import os

import numpy as np
import pytest
from pulls import pull, visible

import streamer
from streamer._pull.record import Wanted
from streamer._pull.resumed_file import Part
from streamer._push.push import Target, push
from streamer._save.writing import Writing

NAMES = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(tmp_path):
    streamer.save({name: np.full(1000, 1, "f4") for name in "abc"}, tmp_path / "source", max_shard_bytes=4000)
    return tmp_path / "source"


def replace(folder, name):
    """Replace a shard by other bytes of equal size."""
    content = (folder / name).read_bytes()
    (folder / "new").write_bytes(content[:-4] + b"\0\0\0\0")
    os.replace(folder / "new", folder / name)


def at(monkeypatch, kind, method, number, change):
    """Call `change` after the call of this number."""
    calls, inner = [], getattr(kind, method)

    def called(*arguments):
        result = inner(*arguments)
        calls.append(arguments)
        if len(calls) == number:
            change()
        return result

    monkeypatch.setattr(kind, method, called)


@pytest.mark.parametrize("target", ["file", "memory"])
@pytest.mark.parametrize("shown", [1, 3, 5], ids=["after the first", "after the last", "with the index"])
@pytest.mark.parametrize("changed", [0, 2])
def test_a_push_of_files_that_change_leaves_no_index_regression(tmp_path, source, monkeypatch, target, shown, changed):
    (source / "model.safetensors.manifest.json").unlink(missing_ok=True)
    at(monkeypatch, Writing, "show", min(shown, len(visible(source))), lambda: replace(source, NAMES[changed]))
    uri = str(tmp_path / "to") if target == "file" else f"memory://changed-{tmp_path.name}"
    with pytest.raises(streamer.ChangedError, match="changed while it was read") as caught:
        push(str(source), Target(uri), Wanted(), progress=False)
    assert NAMES[changed] in caught.value.uri
    with pytest.raises(streamer.StreamerError):
        streamer.load(f"{uri}/{INDEX}", framework="np", progress=False)


@pytest.mark.parametrize("finished", [1, 2, 3, 4])
@pytest.mark.parametrize("changed", [0, 2])
def test_a_pull_of_files_that_change_ends_with_an_error_regression(tmp_path, source, monkeypatch, finished, changed):
    at(monkeypatch, Part, "finish", finished, lambda: replace(source, NAMES[changed]))
    assert pull(source, tmp_path / "to")["exit_code"] == 75
    assert visible(tmp_path / "to") <= {".streamer-pull-incomplete"}


def test_a_source_that_stays_is_copied(tmp_path, source):
    assert push(str(source), Target(str(tmp_path / "to")), Wanted(), progress=False).files == len(visible(source))
    assert pull(source, tmp_path / "pulled")["exit_code"] == 0
