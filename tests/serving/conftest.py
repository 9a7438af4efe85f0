"""Lets vLLM find the plug-in as it does when it is installed, by its entry point; and Run:ai's package our library."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from streamer.compat.runai import library_path

RUNAI = Path(__file__).resolve().parents[2] / ".venv/runai"

if find_spec("vllm") is not None:
    os.environ["STREAMER_LIBRARY"] = str(library_path())
    sys.path.append(str(RUNAI))

    from vllm.plugins import load_general_plugins

    load_general_plugins()
