"""Change the product in small ways, one at a time, and see whether the tests beside it notice.

    cd tests && ../.venv/bin/python -m mutation [--only TEXT]

Each change stands in one of the `*.toml` files beside this one, with the tests that must fail on it. A change that no
test notices is a test that is missing, or code that nobody needs. The tree is restored after each; it must be clean
before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from mutation.running import ROOT, check_clean, is_noticed_by_native_tests, is_noticed_by_pytest, replaced

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

LISTS = sorted(Path(__file__).parent.glob("*.toml"))


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


def changed(change: Change) -> str:
    """Return the text of its file with the change.

    Raises:
        LookupError: its text does not stand in the file once: the list is old.
    """
    text = (ROOT / change.file).read_text()
    if text.count(change.old) != 1:
        raise LookupError(f"{change.file} holds {change.old!r} {text.count(change.old)} times")
    return text.replace(change.old, change.new)


def notice(change: Change) -> bool:
    """Whether a test fails, or the engine cannot be built."""
    if change.is_native:
        return is_noticed_by_native_tests(change.tests)
    return is_noticed_by_pytest(change.tests.split())


@click.command(help=__doc__)
@click.option("--only", default="", help="Changes of files whose name holds this text.")
def main(only: str) -> None:
    check_clean()
    wanted = [change for change in changes() if only in change.file]
    missed = []
    for number, change in enumerate(wanted, 1):
        with replaced(ROOT / change.file, changed(change)):
            is_noticed = notice(change)
        print(f"{number}/{len(wanted)} {'noticed' if is_noticed else 'MISSED '} {change.file}: {change.new.strip()}")
        sys.stdout.flush()
        missed += [] if is_noticed else [change]
    print(f"{len(wanted) - len(missed)} of {len(wanted)} noticed")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
