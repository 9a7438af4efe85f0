"""Cold files straight to a device, through the real engine and fakes of the driver and of libcufile."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from comparison import assert_same, tensors_of

import streamer
from gpu.fake_devices import FakeGpu, attached_cufile, compile_fake

# `direct_io`: the files of a test are in the page cache.
STRAIGHT = streamer.Options(gpudirect=True, direct_io=True, block_bytes=64 << 10, pinned_bytes=1 << 20)


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("fake_cufile", tmp_path_factory.mktemp("fake_cufile"))


@pytest.fixture
def fake_cufile(fake_library: Path, fake_gpu: FakeGpu) -> Iterator[ctypes.CDLL]:
    fake_gpu.place_everything(0)
    library = ctypes.CDLL(str(fake_library))
    library.fake_cufile_reset()
    with attached_cufile(fake_library):
        yield library
        assert library.fake_cufile_live_files() == 0
        assert library.fake_cufile_violations() == 0


def loaded(checkpoint: Path, **kwargs: object) -> tuple[dict[str, torch.Tensor], streamer.LoadReport]:
    with streamer.stream(checkpoint, device="cuda", progress=False, **({"options": STRAIGHT} | kwargs)) as stream:
        tensors = dict(stream)
        return tensors, stream.report


def test_files_go_straight_to_the_device(fake_cufile: ctypes.CDLL, checkpoint: Path) -> None:
    tensors, report = loaded(checkpoint)
    assert_same(tensors, tensors_of(checkpoint))
    assert report.device_path == "gpudirect"
    assert not report.remarks
    assert fake_cufile.fake_cufile_reads() > 0


def test_large_loads_go_that_way_by_themselves(
    fake_cufile: ctypes.CDLL, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    automatic = replace(STRAIGHT, gpudirect=None)
    assert loaded(checkpoint, options=automatic)[1].device_path == "ring"
    monkeypatch.setattr("streamer.core.engine.tuning.LEAST_BYTES_FOR_GPUDIRECT", 1)
    tensors, report = loaded(checkpoint, options=automatic)
    assert_same(tensors, tensors_of(checkpoint))
    assert report.device_path == "gpudirect"
    assert loaded(checkpoint, options=replace(STRAIGHT, gpudirect=False))[1].device_path == "ring"


def test_the_library_copies_and_logs_nothing_by_default(
    fake_cufile: ctypes.CDLL, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cufile.fake_cufile_only_copies()
    monkeypatch.setattr("streamer.core.engine.tuning.LEAST_BYTES_FOR_GPUDIRECT", 1)
    _, report = loaded(checkpoint, options=replace(STRAIGHT, gpudirect=None))
    assert report.device_path == "ring"
    assert not report.remarks
    assert loaded(checkpoint)[1].device_path == "gpudirect"


def test_a_file_it_does_not_support_goes_through_the_ring(fake_cufile: ctypes.CDLL, checkpoint: Path) -> None:
    fake_cufile.fake_cufile_refuse_files()
    tensors, report = loaded(checkpoint)
    assert_same(tensors, tensors_of(checkpoint))
    assert report.device_path == "ring"
    assert report.remarks[0].startswith("GPUDirect Storage was not used: libcufile refused a file with its code 5008")


def test_a_file_it_cannot_read_goes_through_the_ring(fake_cufile: ctypes.CDLL, checkpoint: Path) -> None:
    fake_cufile.fake_cufile_fail_reads(0, 0)
    tensors, report = loaded(checkpoint)
    assert_same(tensors, tensors_of(checkpoint))
    assert report.device_path == "ring"
    assert report.remarks == ("GPUDirect Storage was not used: libcufile failed to read a file: Input/output error",)


def test_what_is_verified_goes_through_the_ring(fake_cufile: ctypes.CDLL, checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    streamer.write_manifest(copy)
    tensors, report = loaded(copy, verify="manifest")
    assert_same(tensors, tensors_of(checkpoint))
    assert report.is_verified
    assert report.device_path == "ring"


def test_without_it_the_report_says_why(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    fake_gpu.place_everything(0)
    _, report = loaded(checkpoint)
    assert report.device_path == "ring"
    assert report.remarks == ("GPUDirect Storage was not used: the kernel module nvidia-fs is not loaded",)


def test_a_load_without_gpudirect_has_no_remark(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    fake_gpu.place_everything(0)
    _, report = loaded(checkpoint, options=streamer.Options(direct_io=True))
    assert report.device_path == "ring"
    assert not report.remarks
