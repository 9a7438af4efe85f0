"""The house rules that a machine can check: layers, public names, and what importing costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamer

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"core": 0, "backends": 1, "plugins": 2, "face": 3}
FOLDERS = {
    "core": ROOT / "core",
    "backends": ROOT / "backends",
    "plugins": ROOT / "plugins",
    "face": ROOT / "src/streamer",
}
FILES = [(layer, path) for layer, folder in FOLDERS.items() for path in sorted(folder.glob("*.py"))]

PUBLIC = """
    AccessDeniedError ChangedError Checkpoint ChecksumError ConnectError CredentialsError DeviceError EngineError
    FormatError HeaderError HttpStatusError LoadCancelledError LoadReport ManifestError ManifestReport
    ObjectNotFoundError OptionError Options PluginError
    RangeResponseError RedirectError ShardIndexError StorageError Stream StreamerError TargetError TlsError
    TransferTimeoutError TruncatedError UnknownDeviceError UnknownSchemeError UnknownTensorError
    UnsupportedDtypeError UsageError hookimpl load load_file load_into open plugins
    release_pinned_memory safe_open stream write_manifest
"""


def imported_layers(path):
    """Layers of this package that a file imports; the engine counts as the lowest."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "streamer":
            modules = [f"streamer.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            modules = [alias.name for alias in getattr(node, "names", [])] if isinstance(node, ast.Import) else []
        for module in modules:
            package, _, inner = module.partition(".")
            if package == "streamer":
                first = inner.partition(".")[0]
                yield "core" if first == "_native" else first if first in LAYERS else "face"


@pytest.mark.parametrize(("layer", "path"), FILES, ids=lambda value: getattr(value, "stem", value))
def test_a_layer_imports_only_downwards(layer, path):
    for found in imported_layers(path):
        assert LAYERS[found] <= LAYERS[layer], f"{path.name} imports from {found}"


def test_every_layer_has_files_to_check():
    assert {layer for layer, _ in FILES} == set(LAYERS)


def test_the_public_names_are_exactly_these():
    assert sorted(streamer.__all__) == sorted(PUBLIC.split())
    for name in PUBLIC.split():
        assert getattr(streamer, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        streamer.lode  # noqa: B018


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_streamer_imports_neither_torch_nor_numpy_nor_fsspec_and_starts_nothing():
    code = (
        "import sys, threading, streamer, streamer.plugins;"
        "print([m for m in ('torch', 'numpy', 'fsspec', 'tqdm', 's3fs') if m in sys.modules], threading.active_count())"
    )
    assert run_python(code) == "[] 1"


# Rooms of the engine, from the lowest: a room includes from its own line none but itself, and from those above.
ENGINE_ROOMS = ["base integrity", "plan cuda net", "io", "schedule", "gpu http nfs", "session", "python"]
ENGINE_RANKS = {room: rank for rank, rooms in enumerate(ENGINE_ROOMS) for room in rooms.split()}
ENGINE_FILES = sorted(path for room in ENGINE_RANKS for path in (ROOT / "native" / room).glob("*.[ch]*"))


@pytest.mark.parametrize("path", ENGINE_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_room_of_the_engine_includes_only_downwards(path):
    room = path.parent.name
    for included in re.findall(r'#include "([^"/]+)/', path.read_text()):
        assert included == room or ENGINE_RANKS[included] < ENGINE_RANKS[room], f"{path.name} includes from {included}"


def test_every_folder_of_the_engine_is_a_room():
    folders = {path.parent.name for path in (ROOT / "native").glob("*/*") if path.is_file()}
    assert folders - {"fuzz", "sanitize", "wheel"} == set(ENGINE_RANKS)


NATIVE = [path for path in (ROOT / "native").rglob("*.[ch]*") if not path.stem.endswith("_test")]
OF_TESTS = {"loopback_server", "proof"}


def test_every_thread_of_the_engine_starts_in_one_place():
    makers = {path.stem for path in NATIVE if re.search(r"std::j?thread\b(?![>&:])|pthread_create", path.read_text())}
    assert makers - OF_TESTS == {"engine_thread"}  # which names it and keeps the program's signals from it


def test_the_folders_of_the_repository_are_not_imported_under_their_own_names():
    assert not {"core", "backends", "plugins"} & set(sys.modules)
