"""A pytest plug-in: our names take the place of safetensors', and the engine reads local files, too.

It is loaded before safetensors' own tests import theirs (``pytest -p conformance.safetensors_names``).
"""

from __future__ import annotations

import pytest
import safetensors
import safetensors.numpy
import safetensors.torch

import streamer.compat.safetensors
import streamer.compat.safetensors.numpy
import streamer.compat.safetensors.torch
from streamer.compat.safetensors import _handle

NAMES = {
    "": ("safe_open", "_safe_open_handle", "SafetensorError"),
    ".torch": ("load", "load_file", "load_model"),
    ".numpy": ("load", "load_file"),
}

opened = 0  # handles of the engine


class _Counted(_handle.EngineHandle):
    def __init__(self, *arguments: object, **named: object) -> None:
        global opened  # noqa: PLW0603
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        opened += 1


_handle._is_for_safetensors = lambda *_: False
_handle.EngineHandle = _Counted
for module, names in NAMES.items():
    theirs = {"": safetensors, ".torch": safetensors.torch, ".numpy": safetensors.numpy}[module]
    ours = {
        "": streamer.compat.safetensors,
        ".torch": streamer.compat.safetensors.torch,
        ".numpy": streamer.compat.safetensors.numpy,
    }[module]
    for name in names:
        setattr(theirs, name, getattr(ours, name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"handles of the engine: {opened}")
