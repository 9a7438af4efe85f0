"""The options that several commands share: storage options as JSON, and the options of commands that copy files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["copy_options", "parsed_options"]

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
