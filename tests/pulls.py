"""Runs ``python -m streamer pull``, in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from streamer._cli import main

WAIT_S = 60.0


def pull(
    uri: str | os.PathLike[str], folder: Path, *more: str, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Pull in this process; give what it tells as JSON, with its exit code."""
    result = CliRunner().invoke(main, arguments(uri, folder, *more, options=options))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    reported = json.loads(result.stdout.splitlines()[0]) if result.stdout.startswith("{") else {}
    return {**reported, "exit_code": result.exit_code, "stderr": result.stderr}


def started(uri: str, folder: Path, *more: str, options: dict[str, Any] | None = None) -> subprocess.Popen[str]:
    """Start a pull in a process of its own."""
    command = [sys.executable, "-m", "streamer", *arguments(uri, folder, *more, options=options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def arguments(
    uri: str | os.PathLike[str], folder: Path, *more: str, options: dict[str, Any] | None = None
) -> list[str]:
    """Return the arguments of a pull."""
    reported = ["--storage-options", json.dumps(options)] if options is not None else []
    return ["pull", os.fspath(uri), str(folder), "--json", *reported, *more]


def visible(folder: Path) -> set[str]:
    """Name the files in a folder and below, but for those of the pull itself."""
    names = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    return {name for name in names if not name.startswith(".streamer-pull")}


def parts(folder: Path) -> list[Path]:
    """Return the files on their way."""
    return [each for each in folder.glob(".streamer-pull/parts/*") if not each.suffix and not each.name.startswith(".")]


def kept_bytes(folder: Path) -> int:
    """Count what is on its way and what has arrived: a pull may be stopped when its last file has just moved."""
    arrived = [folder / each for each in visible(folder)]
    return sum(each.stat().st_size for each in [*parts(folder), *arrived])


def wait_for(is_so: Callable[[], Any], limit_s: float = WAIT_S) -> None:
    """Wait until a function returns something true; fail after the limit."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
