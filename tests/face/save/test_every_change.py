"""A process that is killed before any change of its storage: nothing half is loadable, and the next run ends it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from every_change import CALLS, MOST_CHANGES, SHARDS, died, tensors
from group_ranks import ranks_tell
from servers.writable import Answer, Sent, Storage, writable

import streamer

ONE: dict[str, Any] = {}
# What is saved over what, with resume or not; the last is the shape of the older checkpoint.
SAVES: list[tuple[dict[str, Any], bool, dict[str, Any] | None]] = [
    (ONE, False, None),
    (SHARDS, True, None),
    (SHARDS, False, ONE),
    (SHARDS, True, SHARDS),
    (ONE, False, ONE),
]


class Places:
    """Folders on a disk, or prefixes on a server of S3, which kills the process before a change."""

    def __init__(self, folder: Path, server: Storage | None = None) -> None:
        self.folder, self.server = folder, server
        self.options: dict[str, Any] = {"storage_options": server.options()} if server else {}
        self.how = {"pid": str(folder / "pid"), **self.options} if server else {}
        self.changes = Counter[str]()
        if server:
            server.script = self._kill

    def _kill(self, sent: Sent) -> Answer | None:
        """Kill the process before the change whose number is that of its place."""
        found = re.fullmatch(r"bkt/(\d+ to(\d+))/.*", sent.name)
        if self.server is None or sent.method in ("GET", "HEAD") or not found:
            return None
        self.changes[found[1]] += 1
        if self.changes[found[1]] != int(found[2]) + 1:
            return None
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        return Answer(503, {})

    def uri(self, name: str) -> str:
        return self.server.uri(name) if self.server else str(self.folder / name)

    def copy(self, name: str, places: str) -> None:
        """Copy what is at a place to those of all processes."""
        for number in range(MOST_CHANGES):
            if self.server is None:
                shutil.copytree(self.folder / name, self.folder / f"{places}{number}")
                continue
            for path, found in [*self.server.objects.items()]:
                if path.startswith(f"bkt/{name}/"):
                    self.server.objects[path.replace(name, f"{places}{number}", 1)] = found

    def contents(self, name: str) -> dict[str, bytes]:
        if self.server is None:
            paths = [path for path in (self.folder / name).rglob("*") if path.is_file()]
            return {str(path.relative_to(self.folder / name)): path.read_bytes() for path in paths}
        found = self.server.objects.items()
        return {path.partition(f"/{name}/")[2]: data for path, (data, _) in found if f"/{name}/" in path}

    def value(self, name: str) -> float | None:
        """Return the value of all tensors of a checkpoint; None if a load refuses it."""
        try:
            found = streamer.load(self.uri(name), progress=False, **self.options)
        except (streamer.StorageError, streamer.FormatError):
            return None
        assert found.keys() == {*"abc"}, f"half a checkpoint is loaded: {name}"
        values = {float(each) for tensor in found.values() for each in tensor}
        assert len(values) == 1, f"a mixture is loaded: {name}"
        return values.pop()


@contextmanager
def places_at(kind: str, folder: Path) -> Iterator[Places]:
    if kind == "disk":
        yield Places(folder)
        return
    with writable(kind) as server:
        yield Places(folder, server)


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_saves(kind: str, tmp_path: Path) -> None:
    """After any change the older or the new checkpoint is there, or none; the next run keeps shards that are whole."""
    with places_at(kind, tmp_path) as there:
        calls = list[tuple[str, str, dict[str, Any]]]()
        saves = SAVES if kind == "disk" else SAVES[1:2]
        for case, (shape, resume, older) in enumerate(saves):
            if older is not None:
                streamer.save(tensors(1), there.uri(f"older {case}"), progress=False, **older, **there.options)
                there.copy(f"older {case}", f"{case} to")
            how = {"resume": resume, "overwrite": older is not None, **shape}
            calls.append(("save", there.uri(f"{case} to"), {**how, **there.how}))
        for case, number in enumerate(died(*calls)):
            for place in (f"{case} to{each}" for each in range(number + 1)):
                check_continued(there, place, *saves[case])


def check_continued(
    there: Places, place: str, shape: dict[str, Any], resume: bool, older: dict[str, Any] | None
) -> None:
    found, shown = there.value(place), there.contents(place)
    assert found in ({None, 2.0} if older is None else {1.0, 2.0}), place
    overwrite = older is not None or not resume
    try:
        report = CALLS["save"](there.uri(place), overwrite=overwrite, resume=resume, **shape, **there.options)
    except streamer.UsageError:  # there is a checkpoint already
        assert found == 2.0
        return
    assert there.value(place) == 2.0
    assert streamer.load(there.uri(place), verify="manifest", progress=False, **there.options).keys() == {*"abc"}
    assert there.contents(place).keys() == {*report.files}, place
    if resume and older is None:
        kept = [len(data) for name, data in shown.items() if re.fullmatch(r"model-.*\.safetensors", name)]
        assert report.kept_bytes == sum(kept), place


def test_saves_of_a_group(tmp_path: Path) -> None:
    """Rank 0 is killed before each third change; another group, of one rank more, continues."""
    there = Places(tmp_path)
    how = {"uri": there.uri("0 to"), "resume": True, **SHARDS}
    numbers = range(0, 24, 3)
    told = ranks_tell(2, *[("killed_before", {"number": number, **how}) for number in numbers])
    assert [each[0] is None for each in told] == sorted((each[0] is None for each in told), reverse=True)
    assert told[-1][0] is not None
    shown = {number: there.contents(f"0 to{number}") for number in numbers}
    assert {there.value(f"0 to{number}") for number in numbers} == {None, 2.0}
    for each in told:
        assert each[1]["value"] in ("GroupError", "")
    missing = [number for number in numbers if there.value(f"0 to{number}") is None]
    continued = ranks_tell(3, *[("killed_before", {"number": number, "is_killed": False, **how}) for number in missing])
    for number, each in zip(missing, continued, strict=True):
        assert [one["value"] for one in each] == [""] * 3
        assert there.value(f"0 to{number}") == 2.0
        contents = there.contents(f"0 to{number}")
        assert not [name for name in contents if name.startswith(".")]
        assert all(contents[name] == data for name, data in shown[number].items() if not name.startswith("."))


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_pushes(kind: str, tmp_path: Path) -> None:
    """A second run sends what is missing, and keeps what is there."""
    with places_at(kind, tmp_path) as there:
        source = tmp_path / "source"
        CALLS["save"](source, **SHARDS)
        (source / "config.json").write_text("{}")
        (number,) = died(("push", there.uri("0 to"), {"source": str(source), **there.how}))
        for place in (f"0 to{each}" for each in range(number + 1)):
            shown = [name for name in there.contents(place) if not name.startswith(".")]
            assert there.value(place) in (None, 2.0)
            report = CALLS["push"](there.uri(place), str(source), **there.options)
            assert report.kept_files == len(shown)
            assert there.value(place) == 2.0
            assert there.contents(place) == Places(tmp_path).contents("source"), place


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_publishes(kind: str, tmp_path: Path) -> None:
    """The latest version is always whole, and stays until the pointer names the next; a second publish removes it."""
    with places_at(kind, tmp_path) as there:
        first = streamer.publish(tensors(1), there.uri("older"), progress=False, **there.options).version
        there.copy("older", "0 to")
        (number,) = died(("publish", there.uri("0 to"), {"keep": 1, "grace_s": 0, **there.how}))
        for place in (f"0 to{each}" for each in range(number + 1)):
            assert there.value(f"{place}@latest") in (1.0, 2.0)
            assert there.value(f"{place}@latest") == 2.0 or there.value(f"{place}@{first}") == 1.0
            how = {"keep": 1, "grace_s": 0, "progress": False, **there.options}
            third = streamer.publish(tensors(3), there.uri(place), **how).version
            assert there.value(f"{place}@latest") == 3.0
            names = {name.partition("/")[0] for name in there.contents(place)}
            assert {"latest", third} <= names
            assert first not in names
            assert not [name for name in names if name.startswith(".")]
