"""``import streamer`` is quick and needs nothing: it imports no large library and starts no thread."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def test_importing_streamer_imports_neither_torch_nor_numpy_nor_fsspec_and_starts_nothing() -> None:
    code = (
        "import sys, threading, streamer, streamer.plugins;"
        "print([m for m in ('torch', 'numpy', 'fsspec', 'tqdm', 's3fs') if m in sys.modules], threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 1"


def test_a_plain_load_imports_no_module_that_it_does_not_use(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    code = (
        "import sys, streamer; streamer.load(sys.argv[1], framework='np', progress=False);"
        "print(*(name for name in sys.modules if name.startswith('streamer.')))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.safetensors")]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    others = re.compile(
        r"streamer\.(?:_save|_pull|_push|core\.encryption|core\.group\.start|core\.node\.share|backends\.(?!posix|builtin|opt)"
        r"|core\.verification|core\.checkpoint\.(?:slices|parallel_plans|sealed_catalog|format_catalog|targets))(?:\.|$)"
    )
    assert [name for name in imported if others.match(name)] == []


def test_the_help_of_the_command_imports_neither_numpy_nor_the_engine() -> None:
    code = (
        "import sys; from streamer._cli import main; main(['--help'], standalone_mode=False);"
        "print(sorted({'numpy', 'streamer._native'} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
