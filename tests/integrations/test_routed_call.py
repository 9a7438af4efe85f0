"""A library that passes by a hook that fits gets real files, and is called once more."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from safetensors import SafetensorError

from streamer.compat import hooks
from streamer.compat.hooks import Hook
from streamer.core.errors import ObjectNotFoundError
from streamer.integrations.routed_call import RoutedFolder, call_routed


class Folder:
    path = "/tmp/streamer-private"

    def __init__(self) -> None:
        self.is_read, self.is_written = False, False

    def write_weights(self) -> None:
        self.is_written = True


@pytest.fixture
def route(monkeypatch):
    """A folder that nobody has read, and a hook that fits."""
    host = types.ModuleType("some_host")
    host.read = len
    monkeypatch.setitem(sys.modules, "some_host", host)
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()
    return RoutedFolder(Folder(), {}, Hook("some_host", "read", otherwise="weights take another way"))


def library(route, calls, failure=None, *, reads=False):
    """A function that loads from the folder, once its files are there."""

    def load():
        calls.append(1)
        route.folder.is_read = reads
        if failure is not None and not route.folder.is_written:
            raise failure
        return "model"

    return load


def test_a_function_that_reads_through_the_hook_is_called_once(route, caplog):
    calls = []
    assert call_routed(library(route, calls, reads=True), [route]) == "model"
    assert (len(calls), route.folder.is_written, caplog.messages) == (1, False, [])


@pytest.mark.parametrize(
    "failure",
    [None, FileNotFoundError(f"no {Folder.path}/model.safetensors"), SafetensorError("the header is too small")],
    ids=repr,
)
def test_a_function_that_bypasses_the_hook_is_called_again_with_real_files(route, caplog, failure):
    calls = []
    assert call_routed(library(route, calls, failure), [route]) == "model"
    assert (len(calls), route.folder.is_written) == (2, True)
    (line,) = caplog.messages
    assert "weights were not read through it" in line
    other = RoutedFolder(Folder(), {}, route.hook)
    assert call_routed(library(other, calls), [other]) == "model"  # and from then on with real files at once
    assert (len(calls), other.folder.is_written) == (3, True)


@pytest.mark.parametrize(
    "failure", [TypeError("an unknown argument"), ObjectNotFoundError(f"no {Folder.path}/model.safetensors")], ids=repr
)
def test_other_errors_are_the_caller_s(route, failure):
    calls = []
    with pytest.raises(type(failure)):
        call_routed(library(route, calls, failure), [route])
    assert (len(calls), route.folder.is_written) == (1, False)


# --- ``import streamer.transformers`` and its kind find the integrations, and import no library before it is u ---

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
