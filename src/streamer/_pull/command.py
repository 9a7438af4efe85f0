"""``python -m streamer pull``: what it was asked, what it shows, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import click

from streamer._command_line.exit_codes import exit_code_of
from streamer._command_line.output import tell
from streamer._pull.pull import PullReport, Wanted, pull
from streamer.core.errors import StreamerError
from streamer.core.quoting import counted, printable, size_text
from streamer.core.request.argument_types import ProgressOption

__all__ = ["INTERRUPTED", "run_pull", "tell_failure"]

INTERRUPTED, TERMINATED = 130, 143
SHOWN_EVERY_S = 10.0  # a line where nobody watches: a container's log


class _TerminatedError(BaseException):
    """SIGTERM: kubectl and Docker send it, and SIGKILL later."""


def run_pull(uri: str, folder: str, wanted: Wanted, *, as_json: bool, is_quiet: bool) -> int:
    """Pull, tell the result, and return the exit code.

    Args:
        uri: As for `pull`.
        folder: As for `pull`.
        wanted: As for `pull`.
        as_json: The result is one JSON object on standard output.
        is_quiet: Nothing is shown but errors and that object.
    """
    say = _nothing if is_quiet else _say
    try:
        with _terminable():
            report = pull(uri, folder, wanted, progress=_progress(say, is_quiet=is_quiet), on_wait=say)
    except KeyboardInterrupt:
        return tell_failure("interrupted; run it again to go on", INTERRUPTED, None, as_json=as_json)
    except _TerminatedError:
        return tell_failure("terminated; run it again to go on", TERMINATED, None, as_json=as_json)
    except (StreamerError, OSError) as error:
        return tell_failure(_text_of(error), exit_code_of(error), type(error).__name__, as_json=as_json)
    if as_json:
        tell(json.dumps(report.to_dict()))
    elif not is_quiet:
        tell(_summary(report))
    return 0


def tell_failure(message: str, code: int, kind: str | None, *, as_json: bool) -> int:
    """Tell why a command failed, to people and, as one JSON object on standard output, to programs.

    Args:
        message: One line.
        code: The exit code, which is returned.
        kind: The class of the error; None where there is none.
        as_json: Whether programs are told.
    """
    if as_json:
        told: dict[str, Any] = {"error": kind, "message": printable(message), "exit_code": code}
        tell(json.dumps(told))
    with suppress(OSError):  # nobody can be told, and the exit code tells
        click.echo(f"Error: {printable(message)}", err=True)
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; process 1 of a container would ignore it otherwise."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress(say: Callable[[str], None], *, is_quiet: bool) -> ProgressOption:
    """Choose a bar on a terminal, and a line now and then elsewhere."""
    if is_quiet or sys.stderr is None:  # closed by whoever started this
        return False
    if sys.stderr.isatty():
        return True
    next_at = time.monotonic() + SHOWN_EVERY_S

    def show(done_bytes: int, total_bytes: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + SHOWN_EVERY_S
            say(f"{size_text(done_bytes)} of {size_text(total_bytes)}")

    return show


def _summary(report: PullReport) -> str:
    lines = [f"removed {each}, which {report.uri} no longer has" for each in report.removed]
    there = f"{counted(report.files, 'file')}, {size_text(report.bytes)}, all there"
    read = f"{size_text(report.read_bytes)} read in {report.seconds:.1f} s"
    verified = f"{counted(report.verified_files, 'file')} compared with a digest of the storage when pulled"
    lines.append(f"{report.folder}: {there}; {read}, {verified}")
    return "\n".join(map(printable, lines))


def _text_of(error: BaseException) -> str:
    if isinstance(error, StreamerError) or not isinstance(error, OSError) or not error.filename:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def _say(text: str) -> None:
    click.echo(printable(text), err=True)


def _nothing(_text: str) -> None:
    pass
