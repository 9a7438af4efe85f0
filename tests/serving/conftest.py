"""Lets vLLM find the plug-in as it does when it is installed, by its entry point; and Run:ai's package our library."""

from __future__ import annotations

import os
from importlib.util import find_spec

from streamer.compat.runai import library_path

if find_spec("vllm") is not None:
    os.environ["STREAMER_LIBRARY"] = str(library_path())

    from vllm.plugins import load_general_plugins

    load_general_plugins()
