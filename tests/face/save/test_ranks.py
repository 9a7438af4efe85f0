"""Ranks of a group that save together write byte for byte what one process writes, and end together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from group_ranks import ranks_tell, values
from group_saves import PLACED, whole_tensors
from servers.writable import writable

import streamer


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without_time(report: Any, **other: Any) -> Any:
    return json.loads(json.dumps({**report.to_dict(), "seconds": 0, **other}))


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_placement_is_byte_for_byte_the_save_of_one_process(ranks: int, tmp_path: Path) -> None:
    how: dict[str, Any] = {"mib": 5, "part_mib": 1}
    kinds = ["plain", "mixed", *PLACED]
    saves = [{"uri": str(tmp_path / kind), "kind": kind, **how} for kind in kinds]
    saves.append({"uri": str(tmp_path / "shards"), "kind": "mixed", "max_shard_bytes": "2MB", **how})
    saves.append({"uri": str(tmp_path / "one.safetensors"), "kind": "rows", "digests": False, **how})
    (reported,) = ranks_tell(ranks, ("saves", {"saves": saves}))
    report = streamer.save(whole_tensors(5), tmp_path / "expected")
    streamer.save(whole_tensors(5), tmp_path / "expected shards", max_shard_bytes="2MB")
    for kind, *told in zip(kinds, *values(reported), strict=False):
        assert contents(tmp_path / kind) == contents(tmp_path / "expected"), kind
        assert told == [without_time(report, uri=str(tmp_path / kind))] * ranks
    assert contents(tmp_path / "shards") == contents(tmp_path / "expected shards")
    expected = contents(tmp_path / "expected")["model.safetensors"]
    assert (tmp_path / "one.safetensors").read_bytes() == expected


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure", "web"])
def test_each_storage_gets_each_byte_once(kind: str) -> None:
    with writable(kind) as storage:
        name, options = "ranks/one.safetensors" if kind == "web" else "ranks/folder", storage.options()
        how: dict[str, Any] = {"mib": 6, "part_mib": 1, "storage_options": options, "kind": "mixed"}
        saves = [{"uri": storage.uri(name), **how}]
        if kind != "web":
            saves.append({"uri": storage.uri("ranks/shards"), "max_shard_bytes": "3MB", **how})
            saves.append({"uri": storage.uri(name), "overwrite": True, **how})
        (reported,) = ranks_tell(2, ("saves", {"saves": saves}))
        assert values(reported)[0] == values(reported)[1]
        sent_bytes = sum(len(each.body) for each in storage.log if each.step in ("part", "put", "complete"))
        assert sent_bytes <= 1.01 * sum(each["bytes"] for each in values(reported)[0])
        assert kind != "s3" or storage.uploads == {}
        streamer.save(whole_tensors(6), storage.uri(name.replace("ranks", "alone")), storage_options=options)
        alone = {path: data for path, (data, _) in storage.objects.items() if "/alone/" in path}
        assert len(alone) == 2
        for path, data in alone.items():
            assert storage.objects[path.replace("/alone/", "/ranks/")][0] == data, path
