"""safetensors' own Python tests pass with our names in place, and our engine reading every file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / ".venv/safetensors-suite"

# Readers of frameworks that we have no names for: paddle, mlx, tensorflow, flax.
LEFT_OUT = ("test_paddle_comparison.py", "test_mlx_comparison.py", "test_tf_comparison.py", "test_flax_comparison.py")
PASSED = 66  # of 0.8.0; the others need a GPU, MPS, Windows or an S3 account


def test_the_tests_of_safetensors_pass_on_our_engine(tmp_path: Path) -> None:
    assert SUITE.exists(), "make .venv/.safetensors-suite"
    shutil.copytree(SUITE / "tests", tmp_path / "tests")
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "conformance.safetensors_names",
        "tests",
    ]
    run += [f"--ignore=tests/{name}" for name in LEFT_OUT]
    done = subprocess.run(
        run,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    reported = done.stdout[-3000:]
    assert done.returncode == 0, reported
    assert re.search(rf"\b{PASSED} passed", reported), reported
    handles = re.search(r"handles of the engine: (\d+)", reported)
    assert handles, reported
    assert int(handles[1]) > 40
