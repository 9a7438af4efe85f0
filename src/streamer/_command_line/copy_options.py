"""The options of all commands that copy files: which files, whether they are verified, and what is printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["copy_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


def copy_options(command: Command) -> Command:
    """Add ``--include``, ``--exclude``, ``--no-verify``, ``--json`` and ``--quiet`` to a command."""
    patterns: dict[str, Any] = {"multiple": True, "metavar": "PATTERN"}
    for option in (
        click.option("--quiet", is_flag=True, help="Show no progress and no summary."),
        click.option("--json", "as_json", is_flag=True, help="Print a JSON object, also of an error."),
        click.option("--no-verify", is_flag=True, help="Do not compare files with the digests that the storage keeps."),
        click.option("--exclude", **patterns, help="Leave out files that match; may be repeated."),
        click.option("--include", **patterns, help="Only files that match; may be repeated."),
    ):
        command = option(command)
    return command
