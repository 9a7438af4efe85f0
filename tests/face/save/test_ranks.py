"""Ranks of a group that save together write byte for byte what one process writes, and end together."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from group_cases import same
from group_failures import HALF_TIED
from group_ranks import ranks_tell, values
from group_saves import CHANGES, PLACED, linear_model, tied_model, whole_tensors
from servers.writable import writable

import streamer
from streamer._save import sealed_shards
from streamer.core.encryption.sealed_files import parsed_parameters

SOON_S = 10
KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]


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
def test_each_storage_gets_each_byte_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", KEYS[0])
    with writable(kind) as storage:
        name, options = "ranks/one.safetensors" if kind == "web" else "ranks/folder", storage.options()
        how: dict[str, Any] = {"mib": 6, "part_mib": 1, "storage_options": options, "kind": "mixed"}
        saves = [{"uri": storage.uri(name), **how}]
        if kind != "web":
            saves.append({"uri": storage.uri("ranks/shards"), "max_shard_bytes": "3MB", **how})
            saves.append({"uri": storage.uri(name), "overwrite": True, **how})
            saves.append({"uri": storage.uri("ranks/sealed"), "key": "env:KEY", "max_shard_bytes": "3MB", **how})
        (reported,) = ranks_tell(2, ("saves", {"saves": saves}))
        assert values(reported)[0] == values(reported)[1]
        sent_bytes = sum(len(each.body) for each in storage.log if each.step in ("part", "put", "complete"))
        assert sent_bytes <= 1.01 * sum(each["bytes"] for each in values(reported)[0])
        assert kind != "s3" or storage.uploads == {}
        if kind != "web":
            for path, (data, _) in storage.objects.items():
                if "/sealed/" in path:
                    (tmp_path / path.rpartition("/")[2]).write_bytes(data)
            sealed = streamer.load(tmp_path, key="env:KEY", verify="manifest", progress=False)
            assert all(same(tensor, sealed[name]) for name, tensor in whole_tensors(6).items())
        streamer.save(whole_tensors(6), storage.uri(name.replace("ranks", "alone")), storage_options=options)
        alone = {path: data for path, (data, _) in storage.objects.items() if "/alone/" in path}
        assert len(alone) == 2
        for path, data in alone.items():
            assert storage.objects[path.replace("/alone/", "/ranks/")][0] == data, path


@pytest.mark.parametrize("ranks", [2, 4])
def test_plain_parts_are_saved_as_the_slices_say(ranks: int, tmp_path: Path) -> None:
    kinds = ["patterns", "function", "blocks", "plan", "placements"]
    source = tmp_path / "source"
    streamer.save(whole_tensors(3), source)
    (reported,) = ranks_tell(ranks, ("sliced", {"source": str(source), "uri": str(tmp_path), "kinds": kinds}))
    assert values(reported) == [None] * ranks
    for kind in kinds:
        assert contents(tmp_path / kind) == contents(source), kind


def test_slices_that_are_not_those_of_a_tensor_are_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    (reported,) = ranks_tell(2, ("badly_sliced", {"uri": str(tmp_path / "a")}))
    said = [
        "the ranks of the group hold 1 of the 2 parts of dimension 0",
        "the ranks of the group hold 2 of the 3 parts of dimension 0",
        "rank 0 has 2 of 5 positions of dimension 0, not 3",
        "differs on rank 1 and rank 0",
        "differs on rank 1 and rank 0",
        "differs on rank 1 and rank 0",
        "has no dimension 2",
        "b",
        "the ranks of the group hold 1 of the 2 parts of dimension 0",  # as the other rank has all of it
    ]
    for one, two, text in zip(*values(reported), said, strict=True):
        assert one[0] in ("UsageError", "UnknownTensorError", "GroupError"), text
        assert text in one[1] or text in two[1], (one, two)
    assert not list(tmp_path.iterdir())
    with pytest.raises(streamer.UsageError, match="of a group"):
        streamer.save({"a": torch.ones(2)}, tmp_path / "a", slices={"a": streamer.Slice(0, 0, 2)})


@pytest.mark.parametrize("hidden", [False, True])
def test_ranks_encrypt_what_one_process_encrypts(hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"key": "env:KEY", "context": "it", "hide_names": hidden, "max_shard_bytes": "3MB"}
    monkeypatch.setenv("KEY", KEYS[0])
    kinds = ["mixed", "columns", "plain"]
    saves = [{"uri": str(tmp_path / kind), "kind": kind, "mib": 4, "part_mib": 1, **how} for kind in kinds]
    (reported,) = ranks_tell(4, ("saves", {"saves": saves}))
    assert len(values(reported)) == 4
    for kind in kinds:
        found = [parameters_in(path) for path in sorted((tmp_path / kind).glob("*.safetensors"))]
        monkeypatch.setattr(sealed_shards, "new_parameters", lambda *_, found=found, **__: found)
        streamer.save(whole_tensors(4), tmp_path / f"alone {kind}", **how)
        assert contents(tmp_path / kind) == contents(tmp_path / f"alone {kind}"), kind


def parameters_in(path: Path) -> Any:
    content = path.read_bytes()
    size_bytes = int.from_bytes(content[:8], "little")
    return parsed_parameters(json.loads(content[8 : 8 + size_bytes])["__metadata__"], str(path))


def test_ranks_with_different_keys_are_refused(tmp_path: Path) -> None:
    keys = {str(rank): {"key": "env:KEY" if rank else None} for rank in range(2)}
    names = {str(rank): {"key": f"env:KEY{rank}"} for rank in range(2)}
    saves = [{"uri": str(tmp_path / "a"), "kind": "plain", "of": of} for of in (keys, names)]
    environment = {"KEY": KEYS[0], "KEY0": KEYS[1], "KEY1": KEYS[2]}
    reported = ranks_tell(2, *[("saves", {"saves": [each], "environment": environment}) for each in saves])
    for (one, two), text in zip(
        reported, ["key= differs in the group", "ranks that save together all give one key"], strict=True
    ):
        assert text in two["text"]
        assert text in one["text"]
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_eight_ranks_on_all_meshes_write_what_one_process_writes(tmp_path: Path) -> None:
    kinds, how = ["plain", "mixed", *PLACED], {"mib": 3, "part_mib": 1}
    with ExitStack() as stack:
        storages = [stack.enter_context(writable(kind)) for kind in ("s3", "gcs", "azure")]
        saves = [{"uri": str(tmp_path / kind), "kind": kind, **how} for kind in kinds]
        for storage in storages:
            there = {"storage_options": storage.options(), "max_shard_bytes": "3MB"}
            saves += [{"uri": storage.uri(f"ranks/{kind}"), "kind": kind, **how, **there} for kind in kinds]
        cases = [("saves", {"saves": saves}), ("both_ways", {"uri": str(tmp_path / "both")})]
        reported = ranks_tell(8, *cases, ("experts", {"uri": str(tmp_path / "experts")}))
        objects = [{path: data for path, (data, _) in storage.objects.items()} for storage in storages]
    assert [len(values(each)) for each in reported] == [8, 8, 8]
    streamer.save(whole_tensors(3), tmp_path / "alone")
    streamer.save(whole_tensors(3), tmp_path / "shards", max_shard_bytes="3MB")
    for kind in kinds:
        assert contents(tmp_path / kind) == contents(tmp_path / "alone"), kind
        for each in objects:
            found = {path.rpartition("/")[2]: data for path, data in each.items() if f"/{kind}/" in path}
            assert found == contents(tmp_path / "shards"), kind
    streamer.save(linear_model(), tmp_path / "both alone")
    assert contents(tmp_path / "both") == contents(tmp_path / "both alone")
    assert len(streamer.load(tmp_path / "experts", verify="manifest")) == 10


KILLED = [(0, "sent", 1), (1, "sent", 2), (2, "message", 1), (1, "message", 6), (0, "message", 9), (0, "show", 1)]
RAISED = [(0, "sent", 2), (1, "sent", 1), (0, "show", 1)]


@pytest.mark.parametrize(("how", "breaks"), [("killed", KILLED), ("raised", RAISED)])
def test_a_rank_that_breaks_ends_the_save_of_all_and_the_older_checkpoint_loads(
    how: str, breaks: Any, tmp_path: Path
) -> None:
    places = [tmp_path / str(number) for number in range(len(breaks))]
    for place in places:
        streamer.save({"old": torch.ones(3)}, place)
    cases = [
        ("broken", {"uri": str(place), "who": who, "at": at, "number": number, "how": how})
        for place, (who, at, number) in zip(places, breaks, strict=True)
    ]
    for place, (who, at, number), told in zip(places, breaks, ranks_tell(3, *cases), strict=True):
        where = f"rank {who}, {at} {number}"
        assert streamer.load(place).keys() == {"old"}, where
        left = [path.name for path in place.iterdir() if path.name.startswith(".")]
        assert not left or (at == "show" and how == "killed"), where  # those the next save removes
        for rank, each in enumerate(told):
            if how == "killed" and rank == who:
                assert each is None, where
                continue
            name, text, seconds = each["value"]
            assert name == ("StorageError" if rank == who else "GroupError"), where
            assert ("a rank of the group ended" if how == "killed" else "the quota is used up") in text, where
            assert seconds < SOON_S, where


def test_ranks_that_were_killed_are_continued_by_other_ranks_or_one_process(tmp_path: Path) -> None:
    sizes = {f"part.{number}": 300_000 + number for number in range(5)}
    tensors = {name: torch.arange(size) for name, size in sizes.items()}
    hows: dict[int, dict[str, Any]] = {
        after: {"sizes": sizes, "uri": str(tmp_path / f"{after}"), "max_shard_bytes": "3MB", "part_mib": 1}
        for after in (1, 2, 4)
    }
    first = [("ended", {**how, "flag": how["uri"], "parts_sent": [4, 2]}) for how in hows.values()]
    assert ranks_tell(2, *first) == [[None, None]] * 3
    assert all([*(tmp_path / f"{after}").glob("model-*")] for after in hows)
    kept = {1: streamer.save(tensors, tmp_path / "1", max_shard_bytes="3MB", resume=True).kept_bytes}
    for after in (2, 4):
        (reported,) = ranks_tell(after, ("ended", {**hows[after], "flag": "", "parts_sent": []}))
        (kept[after],) = {each["kept_bytes"] for each in values(reported)}
    streamer.save(tensors, tmp_path / "alone", max_shard_bytes="3MB")
    for after, kept_bytes in kept.items():
        assert kept_bytes >= 2 * 8 * sizes["part.0"], after
        assert contents(tmp_path / f"{after}") == contents(tmp_path / "alone"), after


def test_shards_of_other_content_are_not_continued(tmp_path: Path) -> None:
    sizes = {f"part.{number}": 300_000 for number in range(3)}
    others = {name: torch.ones(size, dtype=torch.int64) for name, size in sizes.items()}
    streamer.save(others, tmp_path / "a", max_shard_bytes="3MB")
    (tmp_path / "a" / "model.safetensors.index.json").unlink()
    (tmp_path / "a" / "model-00003-of-00003.safetensors").unlink()
    how: dict[str, Any] = {"sizes": sizes, "uri": str(tmp_path / "a"), "max_shard_bytes": "3MB", "part_mib": 1}
    (reported,) = ranks_tell(2, ("ended", {**how, "flag": "", "parts_sent": [], "overwrite": True}))
    assert {each["kept_bytes"] for each in values(reported)} == {0}
    loaded = streamer.load(tmp_path / "a", verify="manifest")
    assert all(torch.equal(loaded[name], torch.arange(size)) for name, size in sizes.items())


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_stopped_is_given_up_and_the_older_checkpoint_loads(who: int, tmp_path: Path) -> None:
    streamer.save({"old": torch.ones(3)}, tmp_path / "a")
    arguments = {"uri": str(tmp_path / "a"), "who": who, "options": {"first_byte_timeout_s": 8}}
    (reported,) = ranks_tell(3, ("stopped", arguments))
    told = values(reported)
    for rank in {*range(3)} - {who}:
        assert told[rank][0] == "GroupError"
        assert "did not answer for 8 s" in told[rank][1]
        assert "raise first_byte_timeout_s" in told[rank][1]
    assert told[who][0] in ("GroupError", "StorageError", "ObjectNotFoundError")
    assert streamer.load(tmp_path / "a").keys() == {"old"}


def test_ranks_publish_one_version_or_all_fail(tmp_path: Path) -> None:
    (reported,) = ranks_tell(2, ("published", {"uri": str(tmp_path / "run")}))
    one, two = values(reported)
    assert one[0] == two[0]
    assert one[1] == two[1]
    assert one[1][1] == [one[0][0]]
    said = ["complex128", "keep=1", "without group=", "keep is None or", "no room for the pointer"]
    for first, second, text in zip(one[2:], two[2:], said, strict=False):
        assert first[0] in ERRORS, text
        assert second[0] in ERRORS, text
        assert text in first[1], first
        assert text in second[1], second
    assert one[-1] == two[-1]
    loaded = streamer.load(f"{tmp_path}/run@latest")
    assert all(same(tensor, loaded[name]) for name, tensor in whole_tensors().items())
    assert json.loads((tmp_path / "run" / "latest").read_text())["latest"] == one[-1][0]


ERRORS = ("UsageError", "UnsupportedDtypeError", "GroupError", "StorageError", "OptionError")


def test_names_of_some_ranks_are_joined(tmp_path: Path) -> None:
    (reported,) = ranks_tell(3, ("experts", {"uri": str(tmp_path / "ranks")}))
    experts = {f"expert.{rank}": torch.full((3, 5), float(rank)) for rank in range(3)}
    whole = {"shared": torch.arange(7.0), **experts, "late": torch.ones(2)}
    streamer.save(whole, tmp_path / "alone")
    assert contents(tmp_path / "ranks") == contents(tmp_path / "alone")
    assert [each["tensors"] for each in values(reported)] == [5] * 3


def test_tied_weights_are_written_once_also_if_a_rank_holds_no_row_of_them(tmp_path: Path) -> None:
    (reported,) = ranks_tell(4, ("tied", {"uri": str(tmp_path / "ranks"), "metadata": {"step": "3"}}))
    streamer.save_model(tied_model(), tmp_path / "alone", metadata={"step": "3"})
    assert contents(tmp_path / "ranks") == contents(tmp_path / "alone")
    assert [each["tensors"] for each in values(reported)] == [3] * 4


def test_tensors_that_share_memory_on_one_rank_alone_are_equal_on_the_others_or_refused_regression(
    tmp_path: Path,
) -> None:
    """The values of the other rank were left out, and the save was a success."""
    (reported,) = ranks_tell(2, ("half_tied", {"uri": str(tmp_path)}))
    first, second = values(reported)
    for number, (row, one, two) in enumerate(zip(HALF_TIED, first, second, strict=True)):
        kind, _, is_equal, dtype = row
        assert one == two, row
        if not is_equal or dtype != torch.float32 or kind == "view":
            assert one[0] == "UsageError", row
            assert "differs from 'a', whose memory it shares on others" in one[1], row
            continue
        assert one == ["", 1], row
        with streamer.open(tmp_path / str(number)) as checkpoint:
            assert checkpoint["a"][...].unique().tolist() == [1.0], row
            tied = {"b": "a", "c": "a"} if kind == "chained" else {"b": "a"}
            assert checkpoint.metadata() == {"format": "pt", **tied}, row


@pytest.mark.parametrize("who", [0, 1])
def test_dtensors_that_an_optimizer_changes_meanwhile_are_noticed_on_any_rank_regression(
    who: int, tmp_path: Path
) -> None:
    arguments = {"uri": str(tmp_path / "a"), "kinds": ["rows", "columns", "copies"], "who": who}
    (reported,) = ranks_tell(2, ("changed", arguments))
    own, other = values(reported)[who], values(reported)[1 - who]
    assert len(own) == 3 * len(CHANGES)
    for one, two in zip(own, other, strict=True):
        assert one[0] == "ChangedError"
        assert "tensors were changed while they were saved: a" in one[1]
        assert two[0] == "GroupError"
    assert not list(tmp_path.iterdir())


def test_copies_that_drifted_apart_are_refused_and_other_parts_may_differ_regression(tmp_path: Path) -> None:
    (reported,) = ranks_tell(2, ("drifted", {"uri": str(tmp_path), "who": 1}))
    first, second = values(reported)
    assert first == second
    has_copies = {"copies", "replicas of rows", "replicas of columns"}
    for kind, told in first:
        if kind in has_copies:
            assert "has other values on rank 0 than on rank 1" in str(told), kind
        else:
            assert told == 1, kind


def test_ranks_that_opened_other_checkpoints_are_refused_regression(tmp_path: Path) -> None:
    first, second, target = (str(tmp_path / name) for name in ("first", "second", "target"))
    for number, place in enumerate([first, second]):
        streamer.save({"a": torch.full((600, 999), float(number)), "b": torch.ones(3)}, place)
    cases = [("opened", {"uris": uris, "uri": target}) for uris in ([first, second], [second, second])]
    different, equal = ranks_tell(2, *cases)
    for name, text in values(different):
        assert name == "UsageError"
        assert "tensor 'a' has other values on rank 0 than on rank 1" in text
    assert [each["tensors"] for each in values(equal)] == [2, 2]
    assert contents(Path(target)) == contents(Path(second))


def test_a_group_serves_one_call_at_a_time_regression(tmp_path: Path) -> None:
    (reported,) = ranks_tell(2, ("twice", {"uri": str(tmp_path / "a")}))
    for errors, report in values(reported):
        assert [name for name, _ in errors] == ["UsageError", "OptionError", "UsageError", "UsageError"]
        assert "another load or save of this process uses the group" in errors[0][1]
        assert report["tensors"] == 1
    assert streamer.load(tmp_path / "a", verify="manifest").keys() == {"a"}


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_loads_what_others_save_is_an_error_that_says_so_regression(who: int, tmp_path: Path) -> None:
    streamer.save({"a": torch.zeros(2)}, tmp_path / "a")
    (reported,) = ranks_tell(2, ("other_call", {"uri": str(tmp_path / "a"), "who": who}))
    for name, text in values(reported):
        assert name == "UsageError"
        assert f"the call differs in the group: a {'save' if who == 0 else 'load'} on rank 1" in text
    assert streamer.load(tmp_path / "a")["a"].numel() == 2


REFUSED = {
    "values": "tensor 'a' has other values on rank 0 than on rank 1, which hold the same part",
    "shapes": "tensor 'a' is F32 [4] on rank 0, and F32 [5] on rank 1",
    "partial": "tensor 'a' is a DTensor that is placed as P",
    "mixed": "is not held whole: the parts [0:2, 0:4] and [0:4, 0:4] overlap",
    "metadata": "metadata= differs in the group: on rank 1 from that of rank 0",
    "outside": "the ranks of the group hold 8 of its 16 elements",
    "alone": "is a DTensor: this process has a part of it",
}


def test_what_is_no_one_checkpoint_is_refused_on_all_ranks_before_a_byte_is_written(tmp_path: Path) -> None:
    kinds = [*REFUSED, "dtype of one"]
    (reported,) = ranks_tell(2, ("refused", {"uri": str(tmp_path / "a"), "kinds": kinds}))
    *first, (own, _) = values(reported)[0]
    *second, (other, _) = values(reported)[1]
    assert (own, other) == ("UnsupportedDtypeError", "GroupError")
    for kind, text, one, two in zip(REFUSED, REFUSED.values(), first, second, strict=True):
        assert one[0] == "UsageError", kind
        assert text in one[1], kind
        assert two == one or kind == "outside", kind
    assert not list(tmp_path.iterdir())
