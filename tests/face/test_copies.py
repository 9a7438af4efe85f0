"""`streamer.pull`, `push` and `copy`: the commands of these names as functions."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from servers.seaweedfs import SeaweedServer
from upath import UPath

import streamer

TENSORS = {name: np.full(1000, at, "f4") for at, name in enumerate("ab")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    streamer.save(TENSORS, tmp_path / "model", progress=False)
    (tmp_path / "model/notes.txt").write_text("words")
    return tmp_path / "model"


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return f"s3://private/copies-{tmp_path.name}"


def loaded(uri: str | Path, **how: object) -> dict[str, list[float]]:
    tensors = streamer.load(uri, framework="np", progress=False, **how)  # type: ignore[arg-type]
    return {name: each.tolist() for name, each in tensors.items()}


def test_a_folder_goes_to_a_storage_to_another_place_and_back(
    model: Path, bucket: str, tmp_path: Path, s3_server: SeaweedServer
) -> None:
    options = s3_server.storage_options()
    sent = streamer.push(model, f"{bucket}/one", storage_options=options, progress=False)
    assert isinstance(sent, streamer.PushReport)
    assert sent.files == len([*model.iterdir()])
    again = streamer.push(model, f"{bucket}/one", storage_options=options, progress=False)
    assert (again.kept_files, again.sent_bytes) == (sent.files, 0)
    both = {"source_options": options, "target_options": options}
    copied = streamer.copy(f"{bucket}/one", f"{bucket}/two", exclude="*.txt", progress=False, **both)
    assert copied.files == sent.files - 1
    pulled = streamer.pull(f"{bucket}/two", tmp_path / "pulled", storage_options=options, progress=False)
    assert isinstance(pulled, streamer.PullReport)
    assert pulled.files == copied.files
    assert loaded(tmp_path / "pulled", verify="manifest") == loaded(model)
    assert not (tmp_path / "pulled/notes.txt").exists()


def test_a_path_object_keeps_its_options(model: Path, bucket: str, tmp_path: Path, s3_server: SeaweedServer) -> None:
    place = UPath(f"{bucket}/one", **s3_server.storage_options())
    streamer.push(model, place, include="*.safetensors", progress=False)
    assert streamer.pull(place, tmp_path / "pulled", progress=False).files == 1
    with pytest.raises(streamer.UsageError, match="by a list"):
        streamer.pull([str(place)], tmp_path / "pulled", progress=False)  # type: ignore[arg-type]


def test_what_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(streamer.ObjectNotFoundError, match=r"streamer\.copy"):
        streamer.push("s3://bucket/model", tmp_path / "target")
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.pull(tmp_path / "absent", tmp_path / "pulled", progress=False)
    assert [*tmp_path.iterdir()] == []


def test_other_content_is_replaced_only_if_that_is_asked(model: Path, tmp_path: Path) -> None:
    streamer.push(model, tmp_path / "target", progress=False)
    (model / "notes.txt").write_text("other words")
    with pytest.raises(streamer.UsageError, match=r"notes\.txt"):
        streamer.push(model, tmp_path / "target", progress=False)
    streamer.push(model, tmp_path / "target", replace=True, progress=False)
    assert (tmp_path / "target/notes.txt").read_text() == "other words"


def test_a_function_prints_nothing(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("streamer").setLevel(logging.NOTSET)
    streamer.pull(model, tmp_path / "pulled", progress=False)
    streamer.push(model, tmp_path / "pushed", progress=False)
    assert capfd.readouterr() == ("", "")
