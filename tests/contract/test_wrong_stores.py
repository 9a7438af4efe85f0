"""The contract catches stores that are wrong in one way each, and says which rule they break; it passes right ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree.ElementTree import parse

import pytest

HERE = Path(__file__).parent

# Store, test of the suite that fails, the rule, and what is said of the store.
WRONG = [
    (
        "CloseKills",
        "sources_outlive_the_store",
        "Sources can be read after their store is closed",
        "connection is closed",
    ),
    (
        "CloseRaises",
        "sources_outlive_the_store",
        "Sources can be read",
        "raised RuntimeError in close: nothing to close",
    ),
    ("RecursiveFind", "leaves_out_the_objects_of_sub_folders", "none of the objects of its sub-folders", "find gave"),
    ("UnsortedFind", "gives_the_objects_of_one_folder", "exactly the objects directly in a folder", "find gave"),
    ("StaleFind", "is_never_older_than_the_call", "the next listing shows its new state", r"find gave sizes \[3\]"),
    (
        "AbsentFolderRaises",
        "absent_folder_gives_nothing",
        "A missing folder has an empty listing",
        "raised LookupError in find",
    ),
    ("EndlessFind", "absent_folder_gives_nothing", "A missing folder has an empty listing", "more than 100000 entries"),
    ("ShortReads", "ranges_at_edges", "A range gives exactly its bytes", "gave 1000 bytes of 65536"),
    ("WrongOffset", "ranges_at_edges", "A range gives exactly its bytes", r"read from \[\(65535, 65537\)"),
    ("WrongSize", "stat_gives_the_size", "the size in bytes", "info gave 4320 for 4321 bytes"),
    (
        "OtherBytes",
        "replaced_object_is_never_mixed",
        "Bytes of two versions are never mixed",
        "bytes of the new object were read",
    ),
    ("ConstantVersion", "version_stays_until", "is then another", "the version is still 1"),
    ("RestlessVersion", "version_stays_until", "stays the same until", "the version of the same object was"),
    ("MutableVersion", "stat_gives_the_size", "the size in bytes", "gave list as version"),
    ("HangingRead", "ranges_at_edges", "A range gives exactly its bytes", "did not return within 0.2 s"),
    ("StrangeExceptions", "missing_object_is_not_found", "raises `ObjectNotFoundError`", "raised StrangeError in info"),
    ("FolderIsObject", "folder_is_not_an_object", "`info` of a folder raises", "DID NOT RAISE"),
    (
        "LineEndInHeader",
        "ranges_at_edges",
        "A range gives exactly its bytes",
        "'Authorization' of an HttpSource holds a CR",
    ),
    ("KeepsBuffer", "ranges_at_edges", "A range gives exactly its bytes", "keeps a reference to the buffer"),
    ("ReturnsNothing", "ranges_at_edges", "A range gives exactly its bytes", "gave None as the count of bytes"),
    ("SharedPosition", "large_object_is_read_in_parallel", "in its place", r"byte \d+ is wrong"),
    ("WrongDigest", "digest_matches", "A store with `digest` returns", "digest gave"),
    ("ShowsSecret", "no_secret_is_shown", "No secret is in the text", "a secret of 23 characters is shown"),
]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Run the suite as another distribution does; by test, what it failed with, or None."""
    folder = tmp_path_factory.mktemp("shelf")
    shutil.copy(HERE / "wrong_stores.py", folder)
    shutil.copy(HERE / "wrong_contracts.py", folder / "test_contracts.py")
    info = folder / "streamer_shelf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: streamer-shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[streamer.backends]\nshelf = wrong_stores\n")
    chosen = " or ".join([f"(Test{store} and {test})" for store, test, *_ in WRONG])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command += ["-c", os.devnull, "--junit-xml", str(folder / "report.xml"), "-k"]
    command += [f"TestRight or TestUnknownSizes or {chosen}", str(folder / "test_contracts.py")]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run(command, cwd=HERE, env=environment, timeout=240, capture_output=True, check=False)
    return {
        f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": message_of(case)
        for case in parse(folder / "report.xml").iter("testcase")
    }


def message_of(case: object) -> str | None:
    failure = case.find("failure")  # type: ignore[attr-defined]
    return None if failure is None else str(failure.get("message"))


@pytest.mark.parametrize(("store", "test", "rule", "reported"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_store_fails_with_the_rule_that_it_breaks(
    failures: dict[str, str | None], store: str, test: str, rule: str, reported: str
) -> None:
    (message,) = (each for name, each in failures.items() if name.startswith(f"Test{store}::") and test in name)
    assert message is not None
    assert re.search(rf'breaks the rule "[^"]*{re.escape(rule)}', message), message
    assert re.search(reported, message, re.DOTALL), message


@pytest.mark.parametrize("store", ["Right", "UnknownSizes"])
def test_a_right_store_passes(failures: dict[str, str | None], store: str) -> None:
    of_store = {name: message for name, message in failures.items() if name.startswith(f"Test{store}::")}
    assert len(of_store) > 20
    assert {name: message for name, message in of_store.items() if message is not None} == {}
