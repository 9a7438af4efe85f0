"""What the engine says of NVIDIA's binary interfaces is what NVIDIA's headers say; no GPU is needed to see that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.fake_devices import cxx_compiler
from gpu.installed_files import installed_file

HERE = Path(__file__).resolve().parent


def test_functions_structures_and_numbers_are_those_of_nvidias_headers() -> None:
    headers = {
        installed_file("nvidia-cuda-runtime-cu12", "cuda.h").parent,
        installed_file("nvidia-cufile-cu12", "cufile.h").parent,
    }
    native = HERE.parent.parent / "native"
    paths = [f"-I{native}", *(f"-isystem{folder}" for folder in headers)]
    command = [cxx_compiler(), "-std=c++20", "-fsyntax-only", *paths, HERE / "nvidia_headers.cc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- the script for an hour with a GPU, against the fake driver: every step of it works before such an hour co ---

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_session.sh"


@pytest.mark.nightly
def test_every_step_runs_and_leaves_its_figures(tmp_path: Path) -> None:
    command = ["bash", SCRIPT, tmp_path / "out", "0.02", "fake"]
    environment = os.environ | {"PYTHON": sys.executable, "TMPDIR": str(tmp_path), "STEP_S": "400"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    loads = json.loads((tmp_path / "out" / "loads.json").read_text())
    assert loads.keys() == {"rivals", "ranks", "host", "http"}
    assert all(row["runs"] and not row.get("error") for rows in loads.values() for row in rows)
    assert (tmp_path / "out" / "transformers.json").exists()
    assert not list(tmp_path.glob("gpu-session-*"))  # what it made is gone
