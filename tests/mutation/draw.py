"""Draw small changes of a folder by chance, and see whether the suite notices them.

    make coverage
    cd tests && ../.venv/bin/python -m mutation.draw native/schedule core --count 40 [--seed N]

Of a Python file those tests run that ran the changed line when `make coverage` recorded them; of a native one, all
native tests. A change that goes unnoticed is shown with its line: a test is missing, or the change is none (the meaning
is the same, or only the speed differs). The tree must be clean, and is restored after each.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

import click
from coverage import CoverageData

from mutation.drawing import Drawn, native_changes, python_changes
from mutation.running import NATIVE, ROOT, check_clean, is_noticed_by_native_tests, is_noticed_by_pytest, replaced

MOST_TESTS = 250  # of one change: a line of the core is run by thousands, and nearly all of them notice
NATIVE_SUFFIXES = (".cc", ".h")
NOT_THE_PRODUCT = ("_test.cc", "_fixture.h", "loopback_server.cc", "loopback_server.h")


def changes_of(path: Path) -> list[Drawn]:
    """List the changes of a file."""
    return (native_changes if path.suffix in NATIVE_SUFFIXES else python_changes)(path.read_text())


def files_in(folders: tuple[str, ...]) -> list[Path]:
    """List the product's files."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cc", ".h")]
    return sorted(path for path in found if not path.name.endswith(NOT_THE_PRODUCT))


def tests_of(path: Path, line: int, recorded: CoverageData, chance: random.Random) -> list[str]:
    """Name the tests that ran a line, so many at most.

    Tests of the core come first, as most are about one thing, and one case of each function before its other cases.
    """
    contexts = recorded.contexts_by_lineno(str(path)).get(line, [])
    tests = sorted({context.rpartition("|")[0] or context for context in contexts if "::" in context})
    cases: dict[str, list[str]] = defaultdict(list)
    for test in sorted(chance.sample(tests, len(tests)), key=lambda test: "tests/core/" not in test):
        cases[test.partition("[")[0]].append(test)
    rounds = zip_longest(*cases.values())
    return [test for each in rounds for test in each if test is not None][:MOST_TESTS]


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, required=True)
@click.option("--count", default=40, show_default=True, help="How many changes.")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", help="Numbers of changes, with commas between them: try these of a run again.")
def main(folders: tuple[str, ...], count: int, seed: int, only: str | None) -> None:
    check_clean()
    recorded = CoverageData(str(ROOT / ".coverage"))
    recorded.read()  # nothing where there is no such file
    chance = random.Random(seed)
    every = [(path, drawn) for path in files_in(folders) for drawn in changes_of(path)]
    missed = 0
    drawn_numbers = dict(enumerate(chance.sample(every, min(count, len(every))), 1))
    wanted = {int(number): drawn_numbers[int(number)] for number in only.split(",")} if only else drawn_numbers
    for number, (path, drawn) in wanted.items():
        text = path.read_text()
        with replaced(path, drawn.made_in(text)):
            if path.suffix == ".py":
                is_noticed = is_noticed_by_pytest(tests_of(path, drawn.line, recorded, chance))
            else:
                is_noticed = is_noticed_by_native_tests()
        missed += not is_noticed
        old = text.splitlines()[drawn.line - 1].strip()
        print(f"{number}/{count} {'noticed' if is_noticed else 'MISSED '} {path.relative_to(ROOT)}:{drawn.line}: {old}")
        if not is_noticed:
            print(f"    {text[drawn.begin : drawn.end]!r} -> {drawn.new!r}")
        sys.stdout.flush()
    subprocess.run([ROOT / ".venv/bin/cmake", "--build", NATIVE], check=False, capture_output=True)
    print(f"{len(wanted) - missed} of {len(wanted)} noticed")


if __name__ == "__main__":
    main()
