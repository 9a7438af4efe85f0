"""What commands share: storage options as JSON, the options of copies, what is printed, and the exit code.

A result goes to standard output; if that cannot be written, a command prints one line and exits with 73. A failure is
one line on standard error, one JSON object if that is asked for, and an exit code by which an init container or a
script can decide. If ``sysexits.h`` has a fitting code, it is used.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import click

from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    ChecksumError,
    FormatError,
    MissingShardError,
    ObjectNotFoundError,
    OutOfMemoryError,
    RangeResponseError,
    RedirectError,
    StorageError,
    StreamerError,
    TlsError,
    TruncatedError,
    UsageError,
)
from streamer.core.folders.paths import NO_ROOM_NAMES
from streamer.core.quoting import printable

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

# The first matching class counts: a subclass stands before its base class.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, USAGE),
    (FormatError, WRONG_DATA),
    (ChecksumError, WRONG_DATA),
    (TruncatedError, WRONG_DATA),
    (MissingShardError, WRONG_DATA),
    (ObjectNotFoundError, NOT_FOUND),
    (AccessDeniedError, DENIED),
    (ChangedError, TRY_AGAIN),
    (OutOfMemoryError, TRY_AGAIN),
    (TlsError, PROTOCOL),
    (RedirectError, PROTOCOL),
    (RangeResponseError, PROTOCOL),
    (StorageError, UNAVAILABLE),
    (StreamerError, INTERNAL),
    (OSError, DISK),
)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # this machine lacks a resource at this moment


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error.

    Example:
        >>> [exit_code_of(error) for error in (ObjectNotFoundError("gone"), OSError(28, "No space left on device"))]
        [66, 73]
    """
    if isinstance(error, OSError) and error.errno in _SCARCE:
        return TRY_AGAIN
    if isinstance(error, StorageError) and error.code in NO_ROOM_NAMES:  # a manifest could not be written
        return DISK
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)


def report_failure(message: str, code: int, kind: str | None, *, as_json: bool, reason: str | None = None) -> int:
    """Print why a command failed: a line on standard error, and for programs one JSON object on standard output."""
    if as_json:
        failure: dict[str, Any] = {"error": kind, "message": printable(message), "exit_code": code}
        failure |= {"code": printable(reason)} if reason else {}
        print_line(json.dumps(failure))
    say(f"Error: {message}")
    return code


def end_with(error: StreamerError, context: click.Context, *, as_json: bool) -> NoReturn:
    """Report an error, and end the command with its exit code."""
    context.exit(report_failure(str(error), exit_code_of(error), type(error).__name__, as_json=as_json))


def say(text: str) -> None:
    """Print a line on standard error; if that cannot be written, the exit code still reports a failure."""
    with suppress(Exception):  # it may be a closed file, or an object that cannot be written
        click.echo(printable(text), err=True)


def reason_of(error: BaseException) -> str | None:
    """Return the name of the system's or the storage's error, if there is one."""
    if isinstance(error, StorageError):
        return error.code
    return errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None


class _OutputError(click.ClickException):
    exit_code = DISK


def print_line(text: str) -> None:
    """Write a line to standard output; characters that its encoding lacks are escaped."""
    try:
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


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of cells in columns; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        print_line(printable("  ".join(cells)))


Command = TypeVar("Command", bound=Callable[..., Any])


def copy_options(command: Command) -> Command:
    """Add ``--include``, ``--exclude``, ``--replace``, ``--no-verify``, ``--json`` and ``--quiet`` to a command."""
    patterns: dict[str, Any] = {"multiple": True, "metavar": "PATTERN"}
    for option in (
        click.option("--quiet", is_flag=True, help="Show no progress and no summary."),
        click.option("--json", "as_json", is_flag=True, help="Print a JSON object, also for an error."),
        click.option("--no-verify", is_flag=True, help="Do not compare files with the digests that the storage keeps."),
        click.option("--replace", is_flag=True, help="Replace an older checkpoint; its files are removed last."),
        click.option("--exclude", **patterns, help="Leave out files that match; may be repeated."),
        click.option("--include", **patterns, help="Only files that match; may be repeated."),
    ):
        command = option(command)
    return command


def parsed_options(text: str | None, hint: str = "--storage-options") -> dict[str, Any] | None:
    """Parse storage options that are written as JSON."""
    try:
        options = json.loads(text) if text is not None else None
    except ValueError:
        options = ()
    if options is not None and not isinstance(options, dict):
        raise click.BadParameter("it is no JSON object", param_hint=hint)
    return options
