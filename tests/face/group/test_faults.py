"""A rank that fails, differs, leaves, dies or is silent ends the load of its whole group, soon and with its reason."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from group_ranks import ranks_tell, values
from safetensors.torch import save
from servers.one_file import one_file
from servers.scripted_http import Answer, Request

import streamer

pytestmark = pytest.mark.slow
SOON_S = 15.0  # a second on an idle machine; the tests share theirs
TENSORS = {f"layers.{number:02}": torch.full((1 << 20,), float(number)) for number in range(24)}


@pytest.fixture(scope="module")
def data() -> bytes:
    return save(TENSORS)


@pytest.fixture(scope="module")
def folder(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "model.safetensors").write_bytes(data)
    (folder / "other").mkdir()
    (folder / "other/model.safetensors").write_bytes(save({"layers.00": TENSORS["layers.00"]}))
    return folder


def of_rank(rank: int, **own: Any) -> dict[str, Any]:
    """Arguments that one rank has for itself."""
    return {"of": {str(rank): own}}


def test_requests_that_differ_are_an_error_on_all_ranks(folder: Path) -> None:
    uri = str(folder / "model.safetensors")
    differences = [
        ({"uri": str(folder / "other")}, f"uri= differs in the group: {folder}/other on rank 1, {uri} on rank 0"),
        ({"framework": "np"}, "framework= differs in the group: np on rank 1, pt on rank 0"),
        ({"dtype": "float16"}, "dtype= differs in the group: float16 on rank 1, None on rank 0"),
        ({"slices": {}}, "slices= differs in the group: a mapping on rank 1, None on rank 0"),
        ({"verify": "manifest"}, "verify= differs in the group: manifest on rank 1, off on rank 0"),
    ]
    reported = ranks_tell(3, *[("load", {"uri": uri, **of_rank(1, **own)}) for own, _ in differences])
    for (_, text), ranks in zip(differences, reported, strict=True):
        for each in ranks:
            assert each["error"] == "UsageError", each
            assert text in each["text"]


def test_the_error_of_one_rank_ends_all_before_data(folder: Path) -> None:
    uri = str(folder / "model.safetensors")
    faults: list[tuple[dict[str, Any], str, str]] = [
        ({"names": "nothing.*"}, "UnknownTensorError", "no tensor matches pattern 'nothing.*'"),
        ({"verify": "auto"}, "UsageError", 'verify="auto" compares whole objects'),
        ({"device": "no such device"}, "UnknownDeviceError", "no such device"),
        ({"names": 7}, "UsageError", "names"),
        ({"slices": 7}, "UsageError", "slices"),
    ]
    reported = ranks_tell(3, *[("load", {"uri": uri, **of_rank(2, **own)}) for own, *_ in faults])
    for (_, kind, text), ranks in zip(faults, reported, strict=True):
        assert (ranks[2]["error"], text in ranks[2]["text"]) == (kind, True), ranks[2]
        for each in ranks[:2]:
            assert (each["error"], each["rank"]) == ("GroupError", 2), each
            assert f"rank 2 of the group (3 ranks) failed: {kind}: " in each["text"]
            assert each["seconds"] < SOON_S


@pytest.mark.parametrize("kind", ["load", "slices"])
def test_bytes_that_mismatch_the_manifest_are_an_error_on_all_ranks(tmp_path: Path, kind: str) -> None:
    tensors = {name: TENSORS[name] for name in ("layers.03", "layers.04")}
    file = tmp_path / "model.safetensors"
    file.write_bytes(save({**tensors, "0.up.weight": torch.arange(512.0 * 512).view(512, 512)}))
    streamer.write_manifest(file)
    stored = bytearray(file.read_bytes())
    stored[-5] ^= 1  # of "layers.04"
    file.write_bytes(stored)
    how = {"uri": str(file), "verify": "manifest", **({"kind": "rows"} if kind == "slices" else {})}
    (reported,) = ranks_tell(3, (kind, how))
    for each in reported:
        assert each["error"] == "ChecksumError", each
        assert "the crc32c of tensor 'layers.04' mismatches its manifest's: " in each["text"]


def test_a_rank_without_access_ends_all(data: bytes) -> None:
    """Refused with the first request, or in the middle of the data; other ranks wait for a slow server then."""
    counts = {"first": 0, "middle": 0}

    def change(request: Request, answer: Answer) -> None:
        case, _, rank = request.path.rpartition("=")[2].partition("-")
        if rank != "1" or "range" not in request.headers:
            return
        counts[case] += 1
        if counts[case] > (4 if case == "middle" else 0):
            answer.become(403)

    with one_file(change, data) as server:
        uri = server.url.replace("/object", "/a.safetensors")
        cases = [
            (
                "load",
                {
                    "uri": uri,
                    "options": {"memory_limit_bytes": "8MiB", "block_bytes": "256KiB"},
                    "of": {
                        str(rank): {"uri": f"{uri}?X-Amz-Date=1&X-Amz-Signature={case}-{rank}"} for rank in range(3)
                    },
                },
            )
            for case in counts
        ]
        for ranks in ranks_tell(3, *cases):
            assert ranks[1]["error"] == "AccessDeniedError", ranks[1]
            for each in (ranks[0], ranks[2]):
                assert (each["error"], each["rank"]) == ("GroupError", 1), each
                assert "failed: AccessDeniedError: http://127.0.0.1" in each["text"]
                assert each["seconds"] < SOON_S + 2


def test_a_rank_that_finds_another_version_gets_a_changed_error(data: bytes) -> None:
    def change(request: Request, answer: Answer) -> None:
        if request.path.endswith("=1"):
            answer.headers["ETag"] = '"another"'

    with one_file(change, data) as server:
        uri = server.url.replace("/object", "/a.safetensors")
        own = {str(rank): {"uri": f"{uri}?X-Amz-Date=1&X-Amz-Signature={rank}"} for rank in range(3)}
        (reported,) = ranks_tell(3, ("load", {"uri": uri, "of": own}))
        assert reported[1]["error"] == "ChangedError"
        assert "The file was replaced since it was found" in reported[1]["text"]  # by rank 0
        assert [(reported[rank]["error"], reported[rank]["rank"]) for rank in (0, 2)] == [("GroupError", 1)] * 2


def test_the_death_of_a_rank_ends_all(folder: Path) -> None:
    how = {"uri": str(folder), "options": {"memory_limit_bytes": "16MiB"}}
    (reported,) = ranks_tell(4, ("killed", how))
    assert reported[1] is None
    for each in (reported[0], reported[2], reported[3]):
        assert each["error"] == "GroupError", each
        assert "a rank of the group ended, or its connection did" in each["text"]
        assert each["seconds"] < SOON_S


def test_a_rank_that_is_silent_ends_all_after_the_deadline(folder: Path) -> None:
    how = {"uri": str(folder), "options": {"memory_limit_bytes": "16MiB", "block_deadline_s": 0.01}}
    busy, absent = ranks_tell(3, ("busy", how), ("absent", how))
    for reported in (busy, absent):
        for each in (reported[0], reported[2]):
            assert each["error"] == "GroupError", each
            assert "other ranks of the group did not answer for 5 s" in each["text"]
    assert busy[1]["error"] == "GroupError"


def test_a_slow_rank_is_waited_for(folder: Path) -> None:
    how = {"uri": str(folder), "options": {"memory_limit_bytes": "16MiB"}}
    (reported,) = ranks_tell(3, ("slow", how))
    assert values(reported) == ["loaded"] * 3


def test_a_stream_that_is_left_early_ends_all(folder: Path) -> None:
    how = {"uri": str(folder), "options": {"memory_limit_bytes": "16MiB"}}
    one, all_of_them, raised = ranks_tell(
        3, ("left", {**how, "who": [1]}), ("left", {**how, "who": [0, 1, 2]}), ("raised", how)
    )
    assert one[1]["value"] == "left"
    assert raised[1]["error"] == "ValueError"
    for reported in (one, raised):
        for each in (reported[0], reported[2]):
            assert (each["error"], each["rank"]) == ("GroupError", 1), each
            assert "rank 1 of the group (3 ranks) closed its stream before the end" in each["text"]
    assert values(all_of_them) == [sorted(TENSORS)] * 3  # with the same group again


def test_a_group_loads_again_after_an_error(folder: Path) -> None:
    (reported,) = ranks_tell(3, ("again", {"uri": str(folder), **of_rank(1, names="nothing")}))
    assert values(reported) == [[True, *sorted(TENSORS)]] * 3


def test_no_load_waits_for_long(folder: Path) -> None:
    """What a group costs beside the data: a few rounds."""
    began = time.monotonic()
    (reported,) = ranks_tell(3, ("load", {"uri": str(folder), "names": "layers.00"}))
    assert max(each["seconds"] for each in reported) < time.monotonic() - began
    assert values(reported) == [["layers.00"]] * 3


def test_the_deadline_of_one_rank_ends_all(folder: Path) -> None:
    how = {"uri": str(folder), "options": {"memory_limit_bytes": "16MiB"}}
    own = of_rank(0, options={"memory_limit_bytes": "16MiB", "deadline_s": 1.5})
    (reported,) = ranks_tell(3, ("late", {**how, **own}))
    assert reported[0]["error"] == "TransferTimeoutError"
    assert "Raise deadline_s in Options" in reported[0]["text"]
    for each in reported[1:]:
        assert (each["error"], each["rank"]) == ("GroupError", 0), each
        assert "failed: TransferTimeoutError" in each["text"]


def test_a_stream_that_another_thread_closes_ends_all(folder: Path) -> None:
    """The threads' collectives do not mix: gloo would end the process."""
    how = {"uri": str(folder), "options": {"memory_limit_bytes": "16MiB"}}
    (reported,) = ranks_tell(3, ("closed_by_thread", how))
    assert reported[1]["error"] == "LoadCancelledError"
    for each in (reported[0], reported[2]):
        assert (each["error"], each["rank"]) == ("GroupError", 1), each
