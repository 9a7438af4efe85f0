"""Try every environment of `cells.py`: Python and libraries, oldest and newest, with a load from every storage.

    cd tests && PYTHONPATH=../examples ../.venv/bin/python -m versions [--only TEXT] [--torch REQUIREMENT] [--json]

The exit code is 1 where an environment cannot be made, or a load fails in it. A version of Python that this machine
lacks is a row that says so, and no failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from versions import environments, places
from versions.cells import Cell, cells

CHILDREN = {kind: Path(__file__).with_name(f"{name}.py") for kind, name in (("storages", "child"), ("hosts", "hosts"))}
LONGEST_S = 600


@click.command(help=__doc__)
@click.option("--only", default="", help="Environments whose name holds this text.")
@click.option("--torch", default=None, help="A requirement that all of them take for torch.")
@click.option("--keep", is_flag=True, help="Leave the environments in build/versions; each takes up to 6 GB.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of a table.")
def main(only: str, torch: str | None, keep: bool, as_json: bool) -> None:
    chosen = [cell for cell in cells() if only in cell.name]
    if not chosen:
        raise click.UsageError(f"no environment's name holds {only!r}")
    rows = []
    with tempfile.TemporaryDirectory() as root, places.served(Path(root)) as found:
        asked = json.dumps(found)
        for cell in chosen:
            rows.append(row := {"cell": cell.name, **tried(cell, torch, asked, keep)})
            click.echo(f"{row['cell']}: {row['result']}", err=True)
    click.echo(json.dumps(rows, indent=2) if as_json else table(rows))
    sys.exit(any(row["result"] == "FAILED" for row in rows))


def tried(cell: Cell, torch: str | None, asked: str, keep: bool) -> dict[str, Any]:
    """Make one environment and load in it; say how it went."""
    python = environments.find_python(cell.python)
    if python is None:
        return {"result": "SKIPPED", "why": f"THIS MACHINE HAS NO PYTHON {cell.python}: nothing was tried with it"}
    try:
        inside = environments.made(cell, python, torch)
        answer = _loaded(inside, CHILDREN[cell.kind], asked)
    except (environments.FailedCommandError, subprocess.TimeoutExpired) as failure:
        return {"result": "FAILED", "why": str(failure)}
    finally:
        if not keep:
            shutil.rmtree(environments.FOLDER / cell.name, ignore_errors=True)
    faults = {name: fault for name, fault in answer["places"].items() if fault is not None}
    return {"result": "FAILED" if faults else "passed", "why": "\n".join(faults.values()), **answer}


def _loaded(inside: Path, child: Path, asked: str) -> dict[str, Any]:
    clean = {"PATH": os.defpath, "HOME": str(environments.FOLDER), "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [inside, "-I", child],
        input=asked,
        env=clean,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode:
        raise environments.FailedCommandError(f"{child.name} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def table(rows: list[dict[str, Any]]) -> str:
    """Draw the rows, those with other loads apart, with what went wrong below."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(row.get("places", ())), []).append(row)
    drawn = [line for each in kinds.values() for line in [*_block(each), ""]]
    drawn += [f"{row['cell']}: {row['result']}\n{row['why']}\n" for row in rows if row["result"] != "passed"]
    drawn += [f"{row['cell']} logged: {line}\n" for row in rows for line in row.get("lines", ())]
    counts = {each: sum(row["result"] == each for row in rows) for each in ("passed", "FAILED", "SKIPPED")}
    return "\n".join([*drawn, ", ".join(f"{count} {name.lower()}" for name, count in counts.items())])


def _block(rows: list[dict[str, Any]]) -> list[str]:
    """Draw rows of the same loads."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("places", ())))
    libraries = list(dict.fromkeys(name for row in rows for name in row.get("versions", ())))
    lines = [["environment", *libraries, *names, "result"]]
    for row in rows:
        versions, loads = row.get("versions", {}), row.get("places", {})
        marks = ["-" if name not in loads else "no" if loads[name] else "ok" for name in names]
        lines.append([row["cell"], *(versions.get(each, "-") for each in libraries), *marks, row["result"]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


if __name__ == "__main__":
    main()
