"""``import streamer.transformers`` and its kind find the integrations, and import no library before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = ("accelerate", "dcp", "diffusers", "fsspec", "transformers")

PROGRAM = """
import inspect, sys
import streamer.transformers, streamer.dcp, streamer.fsspec, streamer.accelerate, streamer.diffusers
inspect.getmodule(inspect.currentframe())  # looks at all modules
assert not {"torch", "fsspec", "transformers"} & set(sys.modules), "a library was imported"
from streamer.fsspec import StreamerFileSystem
import streamer.fsspec as module
assert module.StreamerFileSystem is streamer.fsspec.StreamerFileSystem is StreamerFileSystem
from streamer.fsspec import *
"""


def test_a_name_that_is_imported_is_the_attribute_and_imports_nothing_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_an_absent_name_is_an_import_error(name: str) -> None:
    with pytest.raises(ImportError, match="absent"):
        exec(f"from streamer.{name} import absent")
