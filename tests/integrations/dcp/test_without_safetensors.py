"""What is installed with streamer is enough for all but the integrations of other libraries."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["safetensors"] = None  # as without that package: its import fails
import streamer
print(streamer.dcp.StorageReader, streamer.dcp.HuggingFaceStorageReader, streamer.load)
"""


def test_dcp_needs_no_safetensors_regression() -> None:
    """torch has DCP itself, and streamer's own requirements bring no safetensors."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
