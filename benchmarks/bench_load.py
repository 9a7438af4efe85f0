"""Compare loading of one checkpoint: this project, the raw limit, and its rivals, from files and over S3 on loopback.

    python benchmarks/bench_load.py [--rounds 5] [--bytes N] [--only REGEX] [--sections file-warm,http] [--json FILE]
                                    [--before PYTHON]

Guarantees: every run is a fresh process, its bytes are checked, and contestants alternate round by round, so that a
disturbance of the machine hits all of them. Goals are reported as met or missed, not asserted; the exit status is 1
only if this project or a raw reader failed or returned wrong bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import expected_files, expected_tensors, make_or_reuse
from contestants import CONTESTANTS, Contestant, Target, environment_for
from measure import bring_into_page_cache, drop_from_page_cache
from nginx_origin import NginxOrigin
from raw_programs import RAW_ROWS, RawRow
from report import Row, goals, table, write_results
from run_one import NOT_INSTALLED

SECTIONS = ("file-warm", "file-cold", "http", "https")
RUN_TIMEOUT_S = 600
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Before:
    """A row for another build of this project, to compare a change with the state before it."""

    now: Contestant
    python: Path

    @property
    def name(self) -> str:
        """The name in the tables."""
        return f"{self.now.name} (before)"


class Session:
    """Runs contestants on one checkpoint and keeps what they measured."""

    def __init__(
        self, shards: list[Path], rounds: int, candidates: Sequence[RawRow | Contestant], before: Path | None = None
    ) -> None:
        self._shards, self._rounds, self._candidates, self._before = shards, rounds, candidates, before
        self.other_files: list[Path] = []  # made as cold or warm as the shards
        self.run_by: list[str] = []  # the beginning of every command
        self._sizes = [path.stat().st_size for path in shards]
        self._expected = {True: expected_files(shards), False: expected_tensors(shards)}
        self.touch_bytes = int(sum(self._sizes) * 1.05) + (256 << 20)  # includes buffers of the libraries
        self.sections: dict[str, list[Row]] = {}

    def run_section(self, name: str, section: str, target: Target) -> list[Row]:
        """Run every contestant of the section `rounds` times, in another order each round."""
        chosen: list[RawRow | Contestant | Before] = [each for each in self._candidates if section in each.sections]
        if self._before is not None:
            ours = [each for each in chosen if isinstance(each, Contestant) and each.name.startswith("streamer")]
            chosen += [Before(each, self._before) for each in ours]
        rows = {each.name: Row(each.name) for each in chosen}
        for number in range(self._rounds):
            for each in _order(chosen, number):
                self._prepare(section)
                self._run(name, number, each, target, rows[each.name])
        self.sections[name] = list(rows.values())
        return self.sections[name]

    def _prepare(self, section: str) -> None:
        # Done before each run, not each round: direct readers and memory pressure push files out of the cache.
        files = [*self._shards, *self.other_files]
        if section in ("file-cold", "file-half"):
            drop_from_page_cache(files)
        if section != "file-cold":
            bring_into_page_cache(files, 0.5 if section == "file-half" else 1.0)

    def _run(self, section: str, number: int, each: RawRow | Contestant | Before, target: Target, row: Row) -> None:
        if row.problem is not None:
            return
        figures, row.problem = self._figures(each, target)
        if figures is not None and row.problem is None:
            row.runs.append(figures)
        state = row.problem or f"{row.speeds()[-1]:6.2f} GB/s"
        print(f"[{section} {number + 1}/{self._rounds}] {each.name:28} {state}", file=sys.stderr, flush=True)

    def _figures(self, each: RawRow | Contestant | Before, target: Target) -> tuple[dict[str, Any] | None, str | None]:
        try:
            done = self._start(each, target)
        except subprocess.TimeoutExpired:
            return None, f"failed: not done after {RUN_TIMEOUT_S} s"
        if done.returncode != 0:
            state = "not installed" if done.returncode == NOT_INSTALLED else f"failed: status {done.returncode}"
            lines = done.stderr.strip().splitlines() or ["no message"]
            return None, f"{state}: {lines[-1][:200]}"
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        expected = self._expected[isinstance(each, RawRow)]
        wrong = {name: figures[name] for name, value in expected.items() if figures[name] != value}
        return figures, f"wrong: got {wrong}, expected {expected}" if wrong else None

    def _start(self, each: RawRow | Contestant | Before, target: Target) -> subprocess.CompletedProcess[str]:
        python = sys.executable
        if isinstance(each, Before):
            python, each = str(each.python), each.now
        if isinstance(each, RawRow):
            program, *options = each.command(target, self._sizes)
            command, request, environment = [program, "--touch", str(self.touch_bytes), *options], "", None
        else:
            command = [python, str(HERE / "run_one.py"), each.listed_as or each.name]
            request = json.dumps({"target": vars(target), "touch_bytes": self.touch_bytes})
            environment = environment_for(each, target)
        return subprocess.run(
            [*self.run_by, *command],
            input=request,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )


def _order(chosen: list[Any], number: int) -> list[Any]:
    """Rotate the order, and reverse it in every second round, so that no contestant always runs after the same one."""
    start = number * 3 % max(len(chosen), 1)
    rotated = chosen[start:] + chosen[:start]
    return rotated[::-1] if number % 2 else rotated


def targets(section: str, shards: list[Path], origin: NginxOrigin | None) -> Target:
    """Return the place of the shards of a section; `origin` serves the folder's parent."""
    if origin is None:
        return Target([str(path) for path in shards])
    paths = [f"s3://{path.parent.name}/{path.name}" for path in shards]  # nginx serves the folder's parent
    if section == "http":
        return Target(paths, origin.http_url)
    return Target(paths, origin.https_url, origin.ca_file)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=int(2.2 * 2**30), help="size of the checkpoint (default 2.2 GiB)")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="contestants to run")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated, of: " + ", ".join(SECTIONS))
    parser.add_argument(
        "--before", type=Path, metavar="PYTHON", help="the Python of another build, to run beside this one"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results here, as benchmarks/results has them"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="reuse this folder, or make it here")
    arguments = parser.parse_args()
    arguments.sections = arguments.sections.split(",")
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    return arguments


def main() -> int:
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # raises, so that nginx and the children end
    folder = arguments.checkpoint or HERE.parent / ".bench" / f"model-{arguments.bytes}"
    shards = make_or_reuse(folder.resolve(), arguments.bytes, arguments.shards)
    candidates: list[RawRow | Contestant] = [*RAW_ROWS, *CONTESTANTS.values()]
    chosen = [each for each in candidates if arguments.only.search(each.name)]
    session = Session(shards, arguments.rounds, chosen, arguments.before)
    for section in arguments.sections:
        with ExitStack() as stack:
            over_http = section.startswith("http")
            origin = stack.enter_context(NginxOrigin(folder.resolve().parent)) if over_http else None
            rows = session.run_section(section, section, targets(section, shards, origin))
        print(table(f"{section}, {sum(path.stat().st_size for path in shards) / 1e9:.2f} GB", rows), flush=True)
    print(goals(session.sections))
    if arguments.json:
        write_results(arguments.json, session.sections)
    return int(any(_is_broken(row) for rows in session.sections.values() for row in rows))


def _is_broken(row: Row) -> bool:
    return (
        row.problem is not None
        and not row.problem.startswith("not installed")
        and row.name.startswith(("raw", "streamer"))
    )


if __name__ == "__main__":
    sys.exit(main())
