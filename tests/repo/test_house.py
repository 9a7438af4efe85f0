"""The house rules that a machine can check: layers, public names, and what importing costs."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path

import house
import pytest
from each_row import each_row

import streamer

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = """
    AccessDeniedError AsyncStream ChangedError Checkpoint ChecksumError ConnectError CredentialsError DataKey
    DeviceError EncryptionKeyError EngineError FormatError GroupError HeaderError HttpStatusError KeyProvider
    LoadCancelledError LoadReport ManifestError ManifestReport MissingShardError ObjectNotFoundError OptionError
    Options OutOfMemoryError Passphrase Placements PluginError RangeResponseError RedirectError SaveReport
    ShardIndexError Slice StorageError Stream StreamerError TamperedError TargetError TensorIndexError
    TensorParallel TlsError TransferTimeoutError TruncatedError UnknownDeviceError UnknownSchemeError UnknownTensorError
    UnsupportedDtypeError UsageError accelerate aload asave astream dcp diffusers fsspec hookimpl load load_file
    load_into open patch patched plugins release release_pinned_memory safe_open save save_model stream transformers
    unpatch write_manifest
"""


FOR_PLUGINS = """
    AnswerChecksum Backend DigestingStore Examined ExaminedFormat FileSource HttpSource Limits ListingCount NfsSource
    NoDigest examine_formats
    ObjectDigest ObjectInfo PartDigest PythonSource RemoteStore Source Store Upload UploadingStore WritableStore
    check_option_names examine hookimpl installed open_store
    AccessDeniedError ChangedError ChecksumError ConnectError CredentialsError HttpStatusError ObjectNotFoundError
    OptionError PluginError RangeResponseError RedirectError StorageError StreamerError
    BytesFile CheckpointFile CheckpointIndex Format FormatError Reader TensorPlace
    TlsError TransferTimeoutError TruncatedError UsageError
"""
EXAMPLES = [ROOT / "docs/write-a-plugin.md", *sorted((ROOT / "plugins/example").rglob("*.py"))]
PYTHON_FILES = house.python_files()
PYTHON_RANKS = house.ranks(house.PYTHON_ROOMS)
ENGINE_RANKS = house.ranks(house.ENGINE_ROOMS)
ENGINE_FILES = [path for paths in house.engine_files().values() for path in paths]


def test_a_room_imports_only_downwards():
    offenders = {
        (module, imported)
        for module, path in PYTHON_FILES.items()
        for room in [house.room_of(module)]
        for imported in map(house.room_of, house.python_imports(path))
        if imported != room and not PYTHON_RANKS[imported] < PYTHON_RANKS[room]
    }
    assert not offenders


def test_every_room_has_files_to_check():
    assert {house.room_of(module) for module in PYTHON_FILES} == set(PYTHON_RANKS)
    tops = {layer: ROOT / folder for layer, folder in house.FOLDERS.items()}
    folders = {
        (layer, path.relative_to(tops[layer]).parts[:-1][:1])
        for module, path in PYTHON_FILES.items()
        for layer in [module.partition(".")[0]]
    }
    assert len(folders) == len(PYTHON_RANKS) - 1  # but for the face, no folder is without a line of its own


def test_the_page_shows_the_rooms_as_they_are():
    assert house.page_with(house.PAGE.read_text(), house.graphs()) == house.PAGE.read_text(), "python -m house --write"


def test_a_type_checker_sees_every_module():
    """It follows the links in the package, as it cannot follow the editable install."""
    links = {path.name: path.resolve() for path in (ROOT / "src/streamer").iterdir() if path.is_symlink()}
    assert links == {layer: ROOT / folder for layer, folder in house.FOLDERS.items() if layer == folder}


def test_the_public_names_are_exactly_these():
    assert sorted(streamer.__all__) == sorted(PUBLIC.split())
    for name in PUBLIC.split():
        assert getattr(streamer, name).__doc__


def test_the_names_for_authors_of_plugins_are_exactly_these():
    assert sorted(streamer.plugins.__all__) == sorted(FOR_PLUGINS.split())
    for name in FOR_PLUGINS.split():
        assert getattr(streamer.plugins, name).__doc__


@each_row("path", EXAMPLES)
def test_what_a_plugin_needs_has_a_stable_address(path):
    """`streamer` for its users, `streamer.plugins` and the contract for authors of plug-ins."""
    imported = re.findall(r"^ *(?:from|import) (streamer(?:\.\w+)*)", path.read_text(), re.MULTILINE)
    assert set(imported) <= {"streamer", "streamer.plugins", "streamer.plugins.contract"}


def public_functions():
    for name in streamer.__all__:
        public = getattr(streamer, name)
        if getattr(public, "_is_protocol", False):  # for others to write
            continue
        if inspect.isfunction(public):
            yield public
        for each, method in inspect.getmembers(public, inspect.isfunction) if inspect.isclass(public) else ():
            if method.__module__.startswith("streamer") and (each == "__init__" or not each.startswith("_")):
                yield method


def read_of_requests():
    """Name the attributes of requests that product code reads."""
    for path in PYTHON_FILES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("request", "self._request", "how"):
                yield node.attr


USED_OF_REQUEST = set(read_of_requests()) | {"uri"}


def idle_arguments(function):
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    used = {name for statement in definition.body for name in house.names_used_in(statement)}
    used |= USED_OF_REQUEST if "how" in used else set()  # `takes_request` writes the fields of a request in its place
    return set(inspect.signature(function).parameters) - {"self"} - used


def test_every_argument_of_a_public_function_does_something():
    """One that is only checked, wrapped or deleted would be accepted in vain."""
    # A dataclass writes functions that have no source.
    written = [each for each in public_functions() if inspect.unwrap(each).__code__.co_filename != "<string>"]
    assert streamer.load in written
    assert not {each.__qualname__: idle_arguments(each) for each in written if idle_arguments(each)}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        streamer.lode  # noqa: B018


def test_a_room_of_the_engine_includes_only_downwards():
    offenders = {
        (f"{room}/{path.name}", included)
        for path in ENGINE_FILES
        for room in [path.parent.name]
        for included in house.engine_includes(path)
        if included != room and not ENGINE_RANKS[included] < ENGINE_RANKS[room]
    }
    assert not offenders


def test_every_folder_of_the_engine_is_a_room():
    folders = {path.parent.name for path in (ROOT / "native").glob("*/*") if path.is_file()}
    assert folders - {"fuzz", "sanitize", "wheel"} == set(ENGINE_RANKS)


NATIVE = [path for path in (ROOT / "native").rglob("*.[ch]*") if not path.stem.endswith("_test")]
OF_TESTS = {"loopback_server", "proof"}


def test_every_thread_of_the_engine_starts_in_one_place():
    makers = {path.stem for path in NATIVE if re.search(r"std::j?thread\b(?![>&:])|pthread_create", path.read_text())}
    assert makers - OF_TESTS == {"engine_thread"}  # which names it and keeps the program's signals from it


def test_nothing_waits_for_a_pool_of_threads_after_ctrl_c():
    """Those of `concurrent.futures` are joined on the way out: `core/store/parallel.py` leaves its own behind."""
    product = {name: path for name, path in PYTHON_FILES.items() if house.room_of(name) != "plugins.contract"}
    assert not [name for name, path in product.items() if "concurrent.futures" in house.code_of(path)]


def test_the_folders_of_the_repository_are_not_imported_under_their_own_names():
    assert not {"core", "backends", "plugins", "compat", "integrations"} & set(sys.modules)
