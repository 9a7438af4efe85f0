"""The house rules that a machine can check: layers, public names, and what importing costs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import house
import numpy as np
import pytest
import sizes
from each_row import each_row
from safetensors.numpy import save
from servers.scripted_http import ScriptedServer

import streamer

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = """
    AccessDeniedError AsyncStream ChangedError Checkpoint ChecksumError ConnectError CredentialsError DataKey
    DeviceError EncryptionKeyError EngineError FormatError GroupError HeaderError HttpStatusError KeyProvider
    LoadCancelledError LoadReport ManifestError ManifestReport MissingShardError ObjectNotFoundError OptionError
    Options OutOfMemoryError Passphrase Placements PluginError PublishReport PullReport PushReport
    RangeResponseError RedirectError SaveReport
    ShardIndexError Slice StorageError Stream StreamerError TamperedError TargetError TensorIndexError
    TensorParallel TlsError TransferTimeoutError TruncatedError UnknownDeviceError UnknownSchemeError UnknownTensorError
    UnsupportedDtypeError UsageError accelerate aload asave astream copy dcp diffusers fsspec hookimpl load load_file
    load_into open patch patched plugins publish pull push ray release release_pinned_memory safe_open save save_model
    stream transformers unpatch watch write_manifest
"""


FOR_PLUGINS = """
    AnswerChecksum Backend DigestingStore Examined ExaminedFormat FileSource HttpAnswer HttpSource Limits ListingCount
    NfsSource NoDigest examine_formats
    ObjectDigest ObjectInfo PartDigest PythonSource RemoteStore Source Store Upload UploadingStore WritableStore
    check_option_names digest_of examine hookimpl installed note_credential open_store send_request
    AccessDeniedError ChangedError ChecksumError ConnectError CredentialsError HttpStatusError ObjectNotFoundError
    OptionError PluginError RangeResponseError RedirectError StorageError StreamerError
    BytesFile CheckpointFile CheckpointIndex Format FormatError Reader TensorPlace
    TlsError TransferTimeoutError TruncatedError UsageError
"""
EXAMPLES = [
    ROOT / "docs/write-a-plugin.md",
    *sorted((ROOT / "plugins/example").rglob("*.py")),
    *sorted((ROOT / "extras").rglob("*.py")),
]
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


@cache
def read_of_requests():
    """Name the attributes of requests that product code reads."""
    return {"uri"} | {
        node.attr
        for path in PYTHON_FILES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("request", "self._request", "how")
    }


def idle_arguments(function):
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    used = {name for statement in definition.body for name in house.names_used_in(statement)}
    used |= read_of_requests() if "locals" in used else set()  # which become a request
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


# --- files, functions and classes stay as small as the house allows, but for those that CONTRIBUTING.md names -------


def test_only_the_exceptions_of_the_page_are_larger_than_allowed() -> None:
    """Both ways: an exception that nobody needs any more goes from the page."""
    assert sizes.oversized() == sizes.exceptions()


def test_the_product_grows_only_where_the_page_says_so() -> None:
    """A commit that needs more changes the page and says why; one that removes much lowers it."""
    (modules, lines), (most_modules, most_lines) = sizes.totals(), sizes.allowed_totals()
    assert most_modules - 10 <= modules <= most_modules
    assert most_lines - 600 <= lines <= most_lines


# --- the table of threads in docs/architecture.md names every thread that a load may have ---------------------------
SECTION = (ROOT / "docs/architecture.md").read_text().partition("\n## Threads\n")[2].partition("\n## ")[0]
TOLD = {name for row in re.findall(r"^\| (`[^|]+) \|", SECTION, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)}

LOAD = """
import sys, threading
from contextlib import suppress
from pathlib import Path
import fsspec, streamer

def names():
    of_python = {thread.name for thread in threading.enumerate()}
    yield from of_python
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended
            name = path.read_text().strip()
            if name not in {each[:15] for each in of_python}:  # Python 3.14 tells the system its own names
                yield name

own_name = Path("/proc/self/comm").read_text().strip()
fsspec.filesystem("memory").pipe_file("/model.safetensors", Path(sys.argv[1]).read_bytes())
options = streamer.Options(direct_io=True, memory_limit_bytes=1)  # the next is read when one is taken
seen = set()
for uris in (sys.argv[1:], ["memory://model.safetensors"]):
    with streamer.stream(uris, framework="np", progress=True, options=options) as tensors:
        for _ in tensors:
            seen.update(names())
print(*sorted(seen - {own_name}), sep="\\n")
"""


def shard_of(name: str) -> bytes:
    return save({f"{name}.{number}": np.full((64, 64), number, dtype=np.float32) for number in range(8)})


def test_every_thread_of_a_load_is_in_the_table(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(shard_of("file"))

    with ScriptedServer(shard_of("http")) as server:
        command = [sys.executable, "-c", LOAD, str(file), server.url.replace("127.0.0.1", "localhost")]
        seen = set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines())
    assert {"MainThread", "streamer-file0", "streamer-http0", "streamer-py0", "tqdm_monitor"} <= seen
    patterns = [re.compile(re.escape(name).replace("<n>", "[0-9]+")) for name in TOLD]
    assert not [name for name in seen if not any(pattern.fullmatch(name) for pattern in patterns)]


STARTS = (
    ("native", r'start_(?:engine_)?thread\("(\w+)"'),
    ("core", r'name=f"streamer-(\w+)\{'),
    *((folder, r'name=f"streamer-(\w+)\{') for folder in ("src", "compat", "integrations")),
    *((folder, r'name="streamer-(\w+)"') for folder in ("core", "src", "backends", "compat", "integrations")),
    *((folder, r'\brole="(\w+)"') for folder in ("core", "src", "backends", "compat", "integrations", "plugins")),
)


def test_the_table_names_the_threads_that_the_code_starts() -> None:
    started = {
        role
        for folder, pattern in STARTS
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".cc", ".h") and not path.stem.endswith("_test")
        for role in re.findall(pattern, path.read_text())
    }
    own = {name.removeprefix("streamer-").removesuffix("<n>") for name in TOLD if name.startswith("streamer-")}
    assert started - {"example"} == own  # the word of a docstring


# --- every test that a page names exists ----------------------------------------------------------------------------
PAGES = ("promises", "reliability", "security")
NAMED = re.compile(r"`([\w/.]+\.(?:py|cc))::([^`]+)`")


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """Return the names of the tests of a file, which a page names below the root or below ``tests/``."""
    place = ROOT / "tests" / file
    text = (place if place.exists() else ROOT / file).read_text()
    if file.endswith(".cc"):
        return frozenset(re.findall(r'TEST_CASE\("([^"]+)"\)', text))
    names = (node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def test_every_test_that_a_page_names_exists() -> None:
    named = {pair for page in PAGES for pair in NAMED.findall((ROOT / f"docs/{page}.md").read_text())}
    assert len(named) > 200
    assert {(file, name) for file, name in named if name not in names_of_tests(file)} == set()
