"""Lets engines find the plug-ins as they do when installed, by their entry points; and Run:ai's package our library."""

from __future__ import annotations

import os
from importlib.util import find_spec

import empty_modules

from streamer.compat.runai import library_path

if find_spec("vllm") is not None:
    os.environ["STREAMER_LIBRARY"] = str(library_path())

    from vllm.plugins import load_general_plugins

    load_general_plugins()

if find_spec("sglang") is not None:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    empty_modules.install()

    from sglang.srt.plugins import load_plugins

    load_plugins()
