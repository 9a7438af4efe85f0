"""How a pull lists a storage: every sub-folder, an end to all of them, and a warning where a storage names none."""

from __future__ import annotations

import logging

import pytest

from streamer._pull.listing import DEEPEST, files_below
from streamer.core.errors import ObjectNotFoundError, StorageError, UsageError
from streamer.core.options.limits import Limits
from streamer.core.options.settings import resolve
from streamer.core.store.sources import ObjectInfo
from streamer.plugins.guard.answers import names_in
from streamer.plugins.guard.calls import BrokenContractError

SETTINGS = resolve(None)


class FlatStore:
    """One file in each folder, and no names of folders."""

    root = "bucket/model"

    def info(self, path: str) -> ObjectInfo:
        return ObjectInfo(path, f"x://{path}", 1)

    def find(self, prefix: str) -> list[ObjectInfo]:
        return [self.info(f"{prefix}/a.bin")]


class DeepStore(FlatStore):
    """With sub-folders down to a depth."""

    def __init__(self, deepest: int, width: int = 1) -> None:
        self.deepest, self.width = deepest, width

    def folders(self, prefix: str) -> list[str]:
        depth = prefix.count("/") - self.root.count("/")
        return [f"f{number}" for number in range(self.width)] if depth < self.deepest else []


def test_all_sub_folders_are_listed() -> None:
    found = files_below(DeepStore(2, width=2), "x://bucket/model", SETTINGS).files  # type: ignore[arg-type]
    folders = {"", "f0/", "f1/", *(f"f{first}/f{second}/" for first in range(2) for second in range(2))}
    assert found.keys() == {f"{folder}a.bin" for folder in folders}
    assert found["f1/f0/a.bin"].path == "bucket/model/f1/f0/a.bin"


@pytest.mark.parametrize("store", [DeepStore(DEEPEST + 1), DeepStore(3, width=100)])
def test_sub_folders_without_an_end_are_refused(store: DeepStore) -> None:
    with pytest.raises(UsageError, match=r"sub-folders.*Name the sub-folder to pull") as raised:
        files_below(store, "x://bucket/model", SETTINGS)  # type: ignore[arg-type]
    assert raised.value.uri == "x://bucket/model"


def test_a_storage_that_names_no_sub_folders_is_remarked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamer"):
        assert files_below(FlatStore(), "x://bucket/model", SETTINGS).files.keys() == {"a.bin"}  # type: ignore[arg-type]
    assert "this storage lists no sub-folders" in caplog.text


def test_what_a_plugin_names_as_folders_is_checked() -> None:
    assert names_in(("b", "a", "b"), Limits(), "x://bucket") == ["a", "b"]
    for answer in ("ab", 3, ["a", 3]):
        with pytest.raises(BrokenContractError):
            names_in(answer, Limits(), "x://bucket")
    with pytest.raises(StorageError, match="more than 2 entries"):
        names_in(["a", "b", "c"], Limits(listing_entries=2), "x://bucket")


class EmptyStore(FlatStore):
    """Nothing there."""

    def info(self, path: str) -> ObjectInfo:
        raise ObjectNotFoundError("there is none", uri=f"x://{path}", hint="Check the name")

    def find(self, prefix: str) -> list[ObjectInfo]:
        return []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("*.bin", r"pass x://bucket/model and --include '\*\.bin'"),
        ("my *.bin?sig=S3CR3T", r"pass x://bucket/model and --include 'my \*\.bin"),
        ("a.bin", "Check the name"),
    ],
)
def test_the_error_for_a_pattern_in_a_url_says_where_it_belongs(name: str, hint: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=hint) as raised:
        files_below(EmptyStore(), f"x://bucket/model/{name}", SETTINGS)  # type: ignore[arg-type]
    assert "S3CR3T" not in str(raised.value)
