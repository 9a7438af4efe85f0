"""The commands that copy files, ``python -m streamer pull`` and others: their progress, output and exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol, TypeVar

import click

from streamer._command_line.exit_codes import exit_code_of
from streamer._command_line.output import print_line
from streamer._progress import is_terminal
from streamer._pull.pull import PullReport, Wanted, pull
from streamer.core.errors import StorageError, StreamerError
from streamer.core.quoting import counted, printable, size_text
from streamer.core.request.request import ProgressOption

__all__ = ["INTERRUPTED", "CopyReport", "report_failure", "run_copy", "run_pull"]

INTERRUPTED, TERMINATED = 130, 143
SHOWN_EVERY_S = 10.0  # one line of progress in the log of a container


class CopyReport(Protocol):
    """What a command that copies files has done."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""


Report = TypeVar("Report", bound=CopyReport)


class _TerminatedError(BaseException):
    """SIGTERM was received: kubectl and Docker send it first, and SIGKILL later."""


def run_pull(uri: str, folder: str, wanted: Wanted, *, as_json: bool, is_quiet: bool) -> int:
    """Pull, print the result, and return the exit code.

    Args:
        uri: As for `pull`.
        folder: As for `pull`.
        wanted: As for `pull`.
        as_json: Print the result as one JSON object on standard output.
        is_quiet: Show only errors and the result of `as_json`.
    """
    say = _ignore if is_quiet else _say
    return run_copy(
        lambda progress: pull(uri, folder, wanted, progress=progress, on_wait=say),
        _summary,
        as_json=as_json,
        is_quiet=is_quiet,
    )


def run_copy(
    copy: Callable[[ProgressOption], Report], summary: Callable[[Report], str], *, as_json: bool, is_quiet: bool
) -> int:
    """Copy files, print the result, and return the exit code.

    Args:
        copy: Copies the files, and shows its progress.
        summary: Describes what was done, for people.
        as_json: As for `run_pull`.
        is_quiet: As for `run_pull`.
    """
    say = _ignore if is_quiet else _say
    try:
        with _terminable():
            report = copy(_progress(say, is_quiet=is_quiet))
    except KeyboardInterrupt:
        return report_failure("interrupted; run the command again to continue", INTERRUPTED, None, as_json=as_json)
    except _TerminatedError:
        return report_failure("terminated; run the command again to continue", TERMINATED, None, as_json=as_json)
    except (StreamerError, OSError) as error:
        kind, reason = type(error).__name__, _reason_of(error)
        return report_failure(_text_of(error), exit_code_of(error), kind, as_json=as_json, reason=reason)
    if as_json:
        print_line(json.dumps(report.to_dict()))
    elif not is_quiet:
        print_line(summary(report))
    return 0


def report_failure(message: str, code: int, kind: str | None, *, as_json: bool, reason: str | None = None) -> int:
    """Print why a command failed: a line on standard error, and for programs one JSON object on standard output.

    Args:
        message: One line.
        code: The exit code, which is returned.
        kind: The class of the error; None if there is none.
        as_json: Whether to print the JSON object.
        reason: The name of the system's or the storage's error: ``ENOSPC``; None if there is none.
    """
    if as_json:
        failure: dict[str, Any] = {"error": kind, "message": printable(message), "exit_code": code}
        failure |= {"code": printable(reason)} if reason else {}
        print_line(json.dumps(failure))
    _say(f"Error: {message}")
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; by default, process 1 of a container ignores it."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress(say: Callable[[str], None], *, is_quiet: bool) -> ProgressOption:
    """Return a bar on a terminal; elsewhere, a function that prints a line at intervals."""
    if is_quiet or sys.stderr is None:  # None: the parent process closed it
        return False
    if is_terminal():
        return True
    next_at = time.monotonic() + SHOWN_EVERY_S

    def show(done_bytes: int, total_bytes: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + SHOWN_EVERY_S
            say(f"{size_text(done_bytes)} of {size_text(total_bytes)}")

    return show


def _summary(report: PullReport) -> str:
    told = "which {} has in another version and the patterns leave out", "which is not in {}"
    lines = [f"removed {each}, {told[each not in report.replaced].format(report.uri)}" for each in report.removed]
    there = f"{counted(report.files, 'file')}, {size_text(report.bytes)}, all there"
    read = f"{size_text(report.read_bytes)} read in {report.seconds:.1f} s"
    verified = f"{counted(report.verified_files, 'file')} compared with a digest of the storage when pulled"
    authenticated = (
        f", {counted(report.authenticated_files, 'file')} authenticated" if report.authenticated_files else ""
    )
    lines.append(f"{report.folder}: {there}; {read}, {verified}{authenticated}")
    return "\n".join(map(printable, lines))


def _text_of(error: BaseException) -> str:
    if isinstance(error, StreamerError) or not isinstance(error, OSError) or not error.filename:
        return str(error)
    if error.errno == errno.ENOSPC:
        return f"{os.fsdecode(error.filename)}: {error.strerror}. Free some: the next run continues"
    return f"{os.fsdecode(error.filename)} cannot be made or written: {error.strerror}"


def _reason_of(error: BaseException) -> str | None:
    """Return the name of the system's or the storage's error, if there is one."""
    if isinstance(error, StorageError):
        return error.code
    return errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None


def _say(text: str) -> None:
    """Print a line on standard error; if that cannot be written, the exit code still reports a failure."""
    with suppress(Exception):  # it may be a closed file, or an object that cannot be written
        click.echo(printable(text), err=True)


def _ignore(_text: str) -> None:
    pass
