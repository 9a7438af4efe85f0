"""A flipped bit that no transport notices: healed where it passes, an error where it stays, if the load verifies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from make_checkpoint import make_checkpoint

import streamer
from faults.catalogue import FAULTS
from faults.flips import flips_always, flips_once
from faults.server import FaultServer, Script

OPTIONS = streamer.Options(block_bytes=256 << 10)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bucket`` with a small sharded checkpoint and its manifest in ``model``."""
    bucket = tmp_path_factory.mktemp("flips") / "bucket"
    make_checkpoint(bucket / "model", total_bytes=6 << 20, shards=2)
    streamer.write_manifest(bucket / "model")
    return bucket / "model"


def load(model: Path, script: Script, verify: str) -> tuple[dict[str, torch.Tensor], streamer.LoadReport]:
    with (
        FaultServer(model.parent, script) as server,
        streamer.stream(
            server.url("model"),
            storage_options=server.storage_options(),
            options=OPTIONS,
            progress=False,
            verify=verify,  # type: ignore[arg-type]
        ) as stream,
    ):
        loaded = dict(stream)
        report = stream.report
    return loaded, report


def is_equal(loaded: dict[str, torch.Tensor], model: Path) -> bool:
    expected = streamer.load(model)
    return loaded.keys() == expected.keys() and all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_load_without_verify_accepts_changed_bytes(model: Path) -> None:
    loaded, report = load(model, flips_once(), "off")
    assert not is_equal(loaded, model)
    assert report.verified == ()


def test_a_flip_on_the_way_is_read_again_and_counted(model: Path) -> None:
    loaded, report = load(model, flips_once(), "manifest")
    assert is_equal(loaded, model)
    assert report.rereads == 1
    assert report.is_verified


def test_a_flip_that_stays_ends_the_load(model: Path) -> None:
    with pytest.raises(streamer.ChecksumError, match="read twice") as caught:
        load(model, flips_always, "manifest")
    assert caught.value.tensor is not None
    assert str(caught.value.uri).startswith("s3://bucket/model/")


def test_the_storages_own_checksum_finds_it_too(model: Path) -> None:
    with pytest.raises(streamer.ChecksumError, match="the crc64nvme mismatches the storage's") as caught:
        load(model, flips_once(), "auto")
    assert caught.value.tensor is None
    loaded, report = load(model, lambda asked: None, "auto")
    assert is_equal(loaded, model)
    assert [each.verified_by for each in report.verified] == ["crc64nvme", "crc64nvme"]


def test_a_load_reads_an_object_again_that_its_storages_checksum_finds_wrong(model: Path) -> None:
    with FaultServer(model.parent, flips_once()) as server:
        loaded = streamer.load(
            server.url("model"),
            storage_options=server.storage_options(),
            options=OPTIONS,
            progress=False,
            verify="auto",
        )
        assert server.faults["flipped_byte"] == 1
    assert list(loaded) == list(streamer.load(model))
    assert is_equal(loaded, model)


def test_targets_are_filled_again_from_an_object_that_was_wrong(model: Path) -> None:
    expected = streamer.load(model)
    target = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    copied = next(name for name, tensor in expected.items() if tensor.ndim == 2)
    target[copied] = torch.zeros_like(expected[copied].T).T  # not contiguous: filled by a copy
    with FaultServer(model.parent, flips_once()) as server:
        report = streamer.load_into(
            server.url("model"), target, storage_options=server.storage_options(), options=OPTIONS, verify="auto"
        )
    assert is_equal(target, model)
    assert [each.verified_by for each in report.verified] == ["crc64nvme", "crc64nvme"]
    assert 0 < report.rereads < len(expected)
    assert report.is_complete


def test_an_object_that_is_wrong_twice_ends_the_load(model: Path) -> None:
    with (
        FaultServer(model.parent, flips_always) as server,
        pytest.raises(streamer.ChecksumError, match="mismatches the storage's"),
    ):
        streamer.load(server.url("model"), storage_options=server.storage_options(), options=OPTIONS, verify="auto")


def test_other_faults_do_not_disturb_the_digests(model: Path) -> None:
    cut, slow = FAULTS["cut_at_middle"], FAULTS["http_503"]
    loaded, report = load(model, lambda asked: {5: cut, 9: slow, 14: cut}.get(asked.number), "manifest")
    assert is_equal(loaded, model)
    assert report.retries >= 3
    assert (report.rereads, report.is_verified) == (0, True)


def test_the_parts_of_a_multipart_upload_have_checksums_of_their_own(model: Path) -> None:
    def load_parts(script: Script) -> streamer.LoadReport:
        with FaultServer(model.parent, script) as server:
            server.part_bytes = 300_000
            with streamer.stream(
                server.url("model"), storage_options=server.storage_options(), options=OPTIONS, verify="auto"
            ) as stream:
                dict(stream)
            return stream.report

    reported = [str(each.verified_by) for each in load_parts(lambda asked: None).verified]
    assert len(reported) == 2
    assert all(each.startswith("crc32c of ") for each in reported)
    with pytest.raises(streamer.ChecksumError) as caught:
        load_parts(flips_once())
    begin, end = caught.value.byte_range or (0, 0)
    assert end - begin <= 300_000
