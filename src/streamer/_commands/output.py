"""What commands share: options, what is printed, and the exit code.

A result goes to standard output; if that cannot be written, a command prints one line and exits with 73. A failure is
one line on standard error, one JSON object if that is asked for, and an exit code by which an init container or a
script can decide. If ``sysexits.h`` has a fitting code, it is used. Progress goes to standard error.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from streamer.core import errors
from streamer.core.folders.paths import NO_ROOM_NAMES
from streamer.core.quoting import printable, size_text

if TYPE_CHECKING:
    from streamer.core.request.request import ProgressOption

DIFFERENT = 1  # as of diff
USAGE = 2  # as in click
WRONG_DATA = 65
NOT_FOUND = 66
UNAVAILABLE = 69
INTERNAL = 70
DISK = 73
TRY_AGAIN = 75
PROTOCOL = 76
DENIED = 77
INTERRUPTED, TERMINATED = 130, 143  # 128 and the number of the signal, as of a shell

SHOWN_EVERY_S = 10.0  # one line of progress in the log of a container
JSON_EVERY_S = 1.0

# The first matching class counts: a subclass stands before its base class.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.UsageError, USAGE),
    (errors.FormatError, WRONG_DATA),
    (errors.ChecksumError, WRONG_DATA),
    (errors.TruncatedError, WRONG_DATA),
    (errors.MissingShardError, WRONG_DATA),
    (errors.ObjectNotFoundError, NOT_FOUND),
    (errors.AccessDeniedError, DENIED),
    (errors.ChangedError, TRY_AGAIN),
    (errors.OutOfMemoryError, TRY_AGAIN),
    (errors.TlsError, PROTOCOL),
    (errors.RedirectError, PROTOCOL),
    (errors.RangeResponseError, PROTOCOL),
    (errors.StorageError, UNAVAILABLE),
    (errors.StreamerError, INTERNAL),
    (OSError, DISK),
)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # this machine lacks a resource at this moment

Command = TypeVar("Command", bound=Callable[..., Any])


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error.

    Example:
        >>> [exit_code_of(error) for error in (errors.ObjectNotFoundError("gone"), OSError(28, "no room"))]
        [66, 73]
    """
    if isinstance(error, OSError) and error.errno in _SCARCE:
        return TRY_AGAIN
    if isinstance(error, errors.StorageError) and error.code in NO_ROOM_NAMES:  # a manifest could not be written
        return DISK
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)


class Output(NamedTuple):
    """How a command prints its result."""

    as_json: bool
    is_quiet: bool

    def show(self, value: Any, text: str | Callable[[], str], brief: str | None = None) -> None:
        """Print a result: as JSON, as text, or if the command is to be quiet, what is brief of it."""
        if self.as_json:
            print_line(json.dumps(value))
        elif not self.is_quiet:
            print_line(text if isinstance(text, str) else text())
        elif brief:
            print_line(brief)

    def tell(self, text: str) -> None:
        """Print what happens on standard error, unless the command is to be quiet."""
        if not self.is_quiet:
            say(json.dumps({"note": printable(text)}) if self.as_json else text)

    def progress(self) -> ProgressOption:
        """Return a bar on a terminal; elsewhere, a function that prints a line at intervals."""
        if self.is_quiet or sys.stderr is None:  # None: the parent process closed it
            return False
        from streamer._progress import is_terminal  # noqa: PLC0415 (as needed)

        if is_terminal() and not self.as_json:
            return True
        every_s = JSON_EVERY_S if self.as_json else SHOWN_EVERY_S
        next_at = time.monotonic() + every_s

        def show(done_bytes: int, total_bytes: int) -> None:
            nonlocal next_at
            if time.monotonic() < next_at:
                return
            next_at = time.monotonic() + every_s
            if self.as_json:
                say(json.dumps({"done_bytes": done_bytes, "total_bytes": total_bytes}))
            else:
                say(f"{size_text(done_bytes)} of {size_text(total_bytes)}")

        return show


class _TerminatedError(BaseException):
    """SIGTERM was received: kubectl and Docker send it first, and SIGKILL later."""


def answers(command: Command, *, again: str = "") -> Command:
    """Give a command its `Output` and the options for it, report its error, and end with its exit code."""

    @wraps(command)
    def run(*, form: str, as_json: bool, quiet: bool, **arguments: Any) -> None:
        output = Output(as_json or form == "json", quiet or form == "quiet")
        try:
            with _terminable():
                code = command(output=output, **arguments)
        except BrokenPipeError:  # the reader of the output has left
            raise
        except (KeyboardInterrupt, _TerminatedError, errors.StreamerError, OSError) as error:
            code = _report(error, again, as_json=output.as_json)
        click.get_current_context().exit(code or 0)

    forms, what = ["auto", "json", "quiet"], "Text for people, one JSON object (also for an error), or names alone."
    added = click.option("--quiet", is_flag=True, help="As --format quiet.")(run)
    added = click.option("--json", "as_json", is_flag=True, help="As --format json.")(added)
    return click.option("--format", "form", type=click.Choice(forms), default="auto", help=what)(added)  # type: ignore[return-value]


continues = partial(answers, again="; run the command again to continue")


def _report(error: BaseException, again: str, *, as_json: bool) -> int:
    if isinstance(error, (KeyboardInterrupt, _TerminatedError)):
        is_ctrl_c = isinstance(error, KeyboardInterrupt)
        word, code = ("interrupted", INTERRUPTED) if is_ctrl_c else ("terminated", TERMINATED)
        return report_failure(f"{word}{again}", code, None, as_json=as_json)
    return report_failure(
        _text_of(error), exit_code_of(error), type(error).__name__, as_json=as_json, reason=_reason_of(error)
    )


def _text_of(error: BaseException) -> str:
    if isinstance(error, errors.StreamerError) or not isinstance(error, OSError) or not error.filename:
        return str(error)
    if error.errno == errno.ENOSPC:
        return f"{os.fsdecode(error.filename)}: {error.strerror}. Free some: the next run continues"
    what = ": " if isinstance(error, NotADirectoryError) else " cannot be made or written: "
    return f"{os.fsdecode(error.filename)}{what}{error.strerror}"


def _reason_of(error: BaseException) -> str | None:
    """Return the name of the system's or the storage's error, if there is one."""
    if isinstance(error, errors.StorageError):
        return error.code
    return errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; by default, process 1 of a container ignores it."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report_failure(message: str, code: int, kind: str | None, *, as_json: bool, reason: str | None = None) -> int:
    """Print why a command failed: a line on standard error, and for programs one JSON object on standard output."""
    if as_json:
        failure: dict[str, Any] = {"error": kind, "message": printable(message), "exit_code": code}
        failure |= {"code": printable(reason)} if reason else {}
        print_line(json.dumps(failure))
    say(f"Error: {message}")
    return code


def say(text: str) -> None:
    """Print a line on standard error; if that cannot be written, the exit code still reports a failure."""
    with suppress(Exception):  # it may be a closed file, or an object that cannot be written
        click.echo(printable(text), err=True)


class _OutputError(click.ClickException):
    exit_code = DISK


def print_line(text: str) -> None:
    """Write a line to standard output; characters that its encoding lacks are escaped."""
    try:
        if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):  # PYTHONUNBUFFERED: it may write a part
            with open(sys.stdout.fileno(), "wb", closefd=False) as whole:
                whole.write(f"{_escaped(text)}\n".encode(sys.stdout.encoding))
        else:
            click.echo(_escaped(text))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (flushing the old one at exit would fail again)
        raise _OutputError(f"standard output: {error.strerror}") from error


def _escaped(text: str) -> str:
    """Escape characters that the encoding of standard output lacks, as Python does for standard error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of cells in columns, a line each; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        lines.append(printable("  ".join(cells)))
    return "\n".join(lines)


def selecting(command: Command) -> Command:
    """Add ``--include`` and ``--exclude`` to a command."""
    patterns: dict[str, Any] = {"multiple": True, "metavar": "PATTERN"}
    command = click.option("--exclude", **patterns, help="Leave out files that match; may be repeated.")(command)
    return click.option("--include", **patterns, help="Only files that match; may be repeated.")(command)


def keyed(command: Command) -> Command:
    """Add the key of an encrypted checkpoint to a command."""
    command = click.option("--key-context", help="The context to which the checkpoint was bound when saved.")(command)
    what = "The key of an encrypted checkpoint: a file with 32 bytes, hexadecimal digits or base64, or env:NAME."
    return click.option("--key-file", help=what)(command)


def storage_options(name: str = "storage", of: str = "URI") -> Callable[[Command], Command]:
    """Add ``--NAME-options JSON`` and ``--NAME-option NAME=VALUE`` to a command, which gets both as one mapping."""
    parameter, plural, single = f"{name}_options", f"--{name}-options", f"--{name}-option"

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**arguments: Any) -> Any:
            pairs = arguments.pop(f"{name}_option")
            options = _parsed(arguments[parameter], plural)
            if pairs:
                options = {**(options or {}), **dict(_pair(each, single) for each in pairs)}
            return command(**{**arguments, parameter: options})

        what = f"Storage options of {of}, as of streamer.load. Set keys and passwords in the environment, where no"
        one = f"One storage option of {of}; may be repeated. A VALUE that is JSON is one: true, 30, {{…}}."
        added = click.option(single, multiple=True, metavar="NAME=VALUE", help=one)(run)
        return click.option(plural, metavar="JSON", help=f"{what} other user sees them.")(added)  # type: ignore[return-value]

    return decorate


def _parsed(text: str | None, hint: str) -> dict[str, Any] | None:
    try:
        options = json.loads(text) if text is not None else None
    except ValueError:
        options = ()
    if options is not None and not isinstance(options, dict):
        raise click.BadParameter("it is no JSON object", param_hint=hint)
    return options


def _pair(text: str, hint: str) -> tuple[str, Any]:
    """Parse ``name=value``; an error repeats no value, which may be secret."""
    name, has_value, value = text.partition("=")
    if not (name and has_value):
        raise click.BadParameter("it has the form NAME=VALUE", param_hint=hint)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
