"""The example plug-in, installed by pip into a clean environment, loads by its schemes; its page shows its source."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "plugins/example"
PAGE = ROOT / "docs/write-a-plugin.md"
CODE = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)

COMPARE = """
import sys, torch, streamer
expected = streamer.load(sys.argv[1])
loaded = streamer.load(sys.argv[2], storage_options=eval(sys.argv[3]))
assert list(loaded) == list(expected)
assert all(torch.equal(loaded[name], expected[name]) for name in expected)
print(len(loaded), "tensors equal")
"""

DEPOT = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
from depot_server import DepotServer, TOKEN
import subprocess
with DepotServer() as depot:
    for path in pathlib.Path(sys.argv[1]).iterdir():
        depot.put(f"llama/{path.name}", path.read_bytes())
    command = [sys.executable, "-c", sys.argv[3], sys.argv[1], f"depot://{depot.address}/llama", repr({"token": TOKEN})]
    sys.exit(subprocess.run(command, timeout=120).returncode)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the example installed by pip; streamer and torch are seen in this one's."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    hook = folder / "lib" / version / "site-packages/tested_streamer.pth"
    hook.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "--no-deps", EXAMPLE]
    subprocess.run(command, check=True, timeout=240)
    return folder / "bin/python"


def run(python: Path, *arguments: object) -> str:
    command = [str(python), *(str(each) for each in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_backends_of_the_example_are_listed(python: Path) -> None:
    lines = [line.split() for line in run(python, "-m", "streamer", "plugins").splitlines()]
    assert ["sqlite://", "streamer-example", "1.0", "Python", "ok"] in lines
    assert ["depot://", "streamer-example", "1.0", "native", "ok"] in lines


def test_a_checkpoint_loads_through_its_python_source(python: Path, checkpoint: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "models.db")) as database, database:
        database.execute("CREATE TABLE objects(name TEXT PRIMARY KEY, data BLOB, version INTEGER)")
        for path in checkpoint.iterdir():
            database.execute("INSERT INTO objects VALUES (?, ?, 1)", (f"llama/{path.name}", path.read_bytes()))
    reported = run(python, "-c", COMPARE, checkpoint, f"sqlite://{tmp_path}/models.db/llama", {})
    assert re.fullmatch(r"[1-9]\d* tensors equal\n", reported)


def test_a_checkpoint_loads_through_its_http_source(python: Path, checkpoint: Path) -> None:
    reported = run(python, "-c", DEPOT, checkpoint, EXAMPLE / "tests", COMPARE)
    assert re.fullmatch(r"[1-9]\d* tensors equal\n", reported)


def test_the_tests_of_the_example_run_the_contract(python: Path) -> None:
    reported = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, "-c",
               EXAMPLE / "pyproject.toml", EXAMPLE / "tests")  # fmt: skip
    assert " passed" in reported
    assert "failed" not in reported


@pytest.mark.parametrize(("file", "code"), CODE.findall(PAGE.read_text()), ids=lambda value: value[:40])
def test_the_page_shows_the_source_as_it_is(file: str, code: str) -> None:
    assert code.rstrip("\n") == (EXAMPLE / file).read_text().rstrip("\n")


def test_the_page_shows_every_part() -> None:
    shown = {file for file, _ in CODE.findall(PAGE.read_text())}
    assert shown == {
        "src/streamer_example/sqlite.py",
        "src/streamer_example/depot.py",
        "pyproject.toml",
        "tests/test_sqlite.py",
    }
