"""Cold files straight to a device by NVIDIA's own libcufile; the driver below it is fake, as no GPU is here.

The library runs in its compatibility mode: it takes the files and the addresses as it would with a GPU, checks them,
reads by itself and has the driver copy. What it does with the kernel module nvidia-fs is not shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from comparison import tensors_of

from gpu.fake_devices import compile_fake
from gpu.installed_files import installed_file

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def libcufile() -> Path:
    return installed_file("nvidia-cufile-cu12", "libcufile.so.0")


@pytest.fixture(scope="module")
def driver_below(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("cuda_for_cufile", tmp_path_factory.mktemp("driver_below"), soname="libcuda.so.1")


def load(
    libcufile: Path,
    driver_below: Path,
    fake_driver: Path,
    checkpoint: Path,
    folder: Path,
    how: str = "asked",
    **config: bool,
) -> Any:
    """In a process of its own, whose folder the library writes its log to."""
    settings = folder / "cufile.json"
    settings.write_text(json.dumps({"properties": config}))
    environment = {
        "CUFILE_ENV_PATH_JSON": str(settings),
        "LD_PRELOAD": str(driver_below),
        "PYTHONPATH": str(TESTS),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gpu.load_with_libcufile", libcufile, fake_driver, checkpoint, how],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    log = folder / "cufile.log"
    assert done.returncode == 0, done.stderr[-2000:] + (log.read_text()[-2000:] if log.exists() else "")
    return json.loads(done.stdout.splitlines()[-1])


def test_every_tensor_it_reads_is_equal(
    libcufile: Path, driver_below: Path, fake_driver: Path, checkpoint: Path, tmp_path: Path
) -> None:
    report = load(libcufile, driver_below, fake_driver, checkpoint, tmp_path, allow_compat_mode=True)
    expected = {"path": "gpudirect", "remarks": [], "tensors": len(tensors_of(checkpoint)), "different": []}
    assert report == expected


def test_the_ring_is_used_if_cufile_cannot_start_and_its_code_is_reported(
    libcufile: Path, driver_below: Path, fake_driver: Path, checkpoint: Path, tmp_path: Path
) -> None:
    report = load(libcufile, driver_below, fake_driver, checkpoint, tmp_path, allow_compat_mode=False)
    assert report["path"] == "ring"
    assert report["different"] == []
    assert report["remarks"] == ["GPUDirect Storage was not used: libcufile cannot start: its code is 5001"]


def test_a_library_in_its_compatibility_mode_is_not_used(
    libcufile: Path, driver_below: Path, fake_driver: Path, checkpoint: Path, tmp_path: Path
) -> None:
    report = load(libcufile, driver_below, fake_driver, checkpoint, tmp_path, "automatic", allow_compat_mode=True)
    assert report == {"path": "ring", "remarks": [], "tensors": len(tensors_of(checkpoint)), "different": []}
