"""Change the product in small ways, one at a time, and see whether the tests beside it notice.

    cd tests && ../.venv/bin/python -m mutation [--only TEXT]

Each change stands in one of the `*.toml` files beside this one, with the tests that must fail on it. A change that no
test notices is a test that is missing, or code that nobody needs. The tree is restored after each; it must be clean
before.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted(Path(__file__).parent.glob("*.toml"))
LONGEST_S = 600  # of the tests of one change; one that hangs them is noticed, too
NATIVE = ROOT / "build/native-tests"


@dataclass(frozen=True)
class Change:
    """One small change of the product.

    Attributes:
        file: From the repository's root.
        old: Text that stands in it once.
        new: What stands there instead.
        tests: Arguments of pytest; of native files a filter of doctest's, empty for all.
    """

    file: str
    old: str
    new: str
    tests: str = ""

    @property
    def is_native(self) -> bool:
        """Whether the engine is to be built."""
        return self.file.startswith("native/")


def changes() -> Iterator[Change]:
    """Read the lists."""
    for path in LISTS:
        for row in tomllib.loads(path.read_text())["change"]:
            yield Change(**row)


@contextmanager
def made(change: Change) -> Iterator[None]:
    """Make the change inside the block.

    Raises:
        LookupError: its text does not stand in the file once: the list is old.
    """
    path = ROOT / change.file
    text = path.read_text()
    if text.count(change.old) != 1:
        raise LookupError(f"{change.file} holds {change.old!r} {text.count(change.old)} times")
    path.write_text(text.replace(change.old, change.new))
    try:
        yield
    finally:
        path.write_text(text)


def notice(change: Change) -> bool:
    """Whether a test fails, or the engine cannot be built."""
    if change.is_native:
        steps = [[ROOT / ".venv/bin/cmake", "--build", NATIVE]]
        steps += [[NATIVE / "native_tests", *([f"--test-case={change.tests}"] if change.tests else [])]]
    else:
        steps = [[ROOT / ".venv/bin/pytest", "-q", "-x", "-p", "no:cacheprovider", *change.tests.split()]]
    for step in steps:
        try:
            done = subprocess.run(step, cwd=ROOT, capture_output=True, timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode:
            return True
    return False


@click.command(help=__doc__)
@click.option("--only", default="", help="Changes of files whose name holds this text.")
def main(only: str) -> None:
    if subprocess.run(["git", "diff", "--quiet"], cwd=ROOT, check=False).returncode:
        raise click.UsageError("the tree has changes of your own")
    wanted = [change for change in changes() if only in change.file]
    missed = []
    for number, change in enumerate(wanted, 1):
        with made(change):
            is_noticed = notice(change)
        print(f"{number}/{len(wanted)} {'noticed' if is_noticed else 'MISSED '} {change.file}: {change.new.strip()}")
        sys.stdout.flush()
        missed += [] if is_noticed else [change]
    print(f"{len(wanted) - len(missed)} of {len(wanted)} noticed")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
