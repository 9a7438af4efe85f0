"""A process that a progress function forks, and that ends there, leaves what its parent is saving alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.seaweedfs import SeaweedServer

import streamer

TENSORS = {f"w{number}": np.full(3 << 20, number, dtype="f4") for number in range(3)}


class Forking:
    """A progress function that forks once; the child leaves by an exception, through the frames of the save."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.children, self._parent = error, list[int](), os.getpid()

    def __call__(self, done_bytes: int, _total_bytes: int) -> None:
        if done_bytes and not self.children:
            child = os.fork()
            if child == 0:
                raise self.error
            self.children.append(child)
            assert os.waitpid(child, 0)[1] >= 0


def save_with_fork(error: BaseException, uri: Any, **how: Any) -> None:
    parent, forking = os.getpid(), Forking(error)
    try:
        streamer.save(TENSORS, uri, progress=forking, **how)
    finally:
        if os.getpid() != parent:
            os._exit(0)  # the child, after all that a save does behind an exception
    assert forking.children


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize(
    "how", [{}, {"max_shard_bytes": "13MB"}, {"overwrite": True}], ids=["one", "shards", "replaced"]
)
def test_a_child_leaves_the_drafts_of_its_parent_alone_regression(
    error: BaseException, how: dict[str, Any], tmp_path: Path
) -> None:
    if "overwrite" in how:
        streamer.save({"old": np.zeros(3)}, tmp_path / "model")
    save_with_fork(error, tmp_path / "model", **how)
    loaded = streamer.load(tmp_path / "model", framework="np", progress=False)
    assert all(np.array_equal(loaded[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_aborts_no_upload_of_its_parent(s3_server: SeaweedServer, tmp_path: Path) -> None:
    uri, options = f"s3://private/{tmp_path.name}/model", s3_server.storage_options()
    save_with_fork(SystemExit(0), uri, storage_options=options)
    loaded = streamer.load(uri, framework="np", storage_options=options, progress=False)
    assert np.array_equal(loaded["w2"], TENSORS["w2"])
