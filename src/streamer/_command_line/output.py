"""Standard output of the commands. If it cannot be written, a command prints one line and exits with 73."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from streamer._command_line.exit_codes import DISK
from streamer.core.quoting import printable

__all__ = ["print_line", "print_table"]


class _OutputError(click.ClickException):
    exit_code = DISK


def print_line(text: str) -> None:
    """Write a line to standard output; characters that its encoding lacks are escaped.

    Raises:
        click.ClickException: standard output cannot be written, for instance because its disk is full.
        BrokenPipeError: the reader of the pipe has ended; `click` then ends the command silently, as shells expect.
    """
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
