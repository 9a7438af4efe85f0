"""The oldest transformers that streamer supports passes the tests of the newest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST = ROOT / ".venv/transformers-oldest"
TESTS = [
    "integrations/transformers/test_transformers.py",
    "integrations/transformers/test_ranks.py",
    "gpu/test_fake_transformers.py",
]
NAME_IT = "import transformers; print(transformers.__version__)"


@pytest.mark.nightly
def test_the_oldest_transformers_passes_the_same_tests() -> None:
    assert OLDEST.exists(), "make .venv/.transformers-oldest"
    environment = {**os.environ, "PYTHONPATH": str(OLDEST)}
    named = subprocess.run([sys.executable, "-c", NAME_IT], env=environment, capture_output=True, text=True, check=True)
    assert named.stdout.startswith("5.0.")
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not other_threads", *TESTS]
    done = subprocess.run(
        run, cwd=ROOT / "tests", env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    reported = done.stdout[-3000:]
    assert done.returncode == 0, reported
    assert re.search(r"[3-9][0-9] passed", reported), reported
