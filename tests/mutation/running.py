"""Change a file of the product, run tests, and put the file back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

__all__ = ["NATIVE", "ROOT", "check_clean", "is_noticed_by_native_tests", "is_noticed_by_pytest", "replaced"]

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "build/native-tests"
LONGEST_S = 600  # of the tests of one change; one that hangs them is noticed, too


def check_clean() -> None:
    """Refuse to begin where a change could not be told from the developer's own.

    Raises:
        click.UsageError: the tree is not clean.
    """
    if subprocess.run(["git", "diff", "--quiet"], cwd=ROOT, check=False).returncode:
        raise click.UsageError("the tree has changes of your own")


@contextmanager
def replaced(path: Path, text: str) -> Iterator[None]:
    """Have the file hold that text inside the block."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


def is_noticed_by_pytest(arguments: Sequence[str]) -> bool:
    """Whether one of these tests fails; of none, none does."""
    options = ["-q", "-x", "-p", "no:cacheprovider", *(["-n", "2"] if len(arguments) > 20 else [])]
    return bool(arguments) and _fails([ROOT / ".venv/bin/pytest", *options, *arguments])


def is_noticed_by_native_tests(only: str = "") -> bool:
    """Whether the engine cannot be built, or one of its own tests fails."""
    chosen = [f"--test-case={only}"] if only else []
    return _fails([ROOT / ".venv/bin/cmake", "--build", NATIVE]) or _fails([NATIVE / "native_tests", *chosen])


def _fails(step: Sequence[str | Path]) -> bool:
    try:
        return subprocess.run(step, cwd=ROOT, capture_output=True, timeout=LONGEST_S, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True
