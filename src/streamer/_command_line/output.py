"""Standard output of the commands. Where it takes no more, a command says so in one line and exits with 73."""

from __future__ import annotations

import errno
import os
import sys

import click

from streamer._command_line.exit_codes import DISK

__all__ = ["tell"]


class _OutputError(click.ClickException):
    exit_code = DISK


def tell(text: str) -> None:
    """Write a line to standard output; what its encoding does not have is escaped.

    Raises:
        click.ClickException: it takes no more: its disk is full, say.
        BrokenPipeError: nobody reads it any more; `click` ends the command without a word, as shells expect.
    """
    try:
        click.echo(_escaped(text))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (what is left in the old one would fail once more at exit)
        raise _OutputError(f"standard output: {error.strerror}") from error


def _escaped(text: str) -> str:
    """Escape what the encoding of standard output does not have, as Python does for standard error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
