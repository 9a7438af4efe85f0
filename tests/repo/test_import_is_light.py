"""``import streamer`` is quick and needs nothing: it imports no large library and starts no thread."""

from __future__ import annotations

import subprocess
import sys


def test_importing_streamer_imports_neither_torch_nor_numpy_nor_fsspec_and_starts_nothing() -> None:
    code = (
        "import sys, threading, streamer, streamer.plugins;"
        "print([m for m in ('torch', 'numpy', 'fsspec', 'tqdm', 's3fs') if m in sys.modules], threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 1"
