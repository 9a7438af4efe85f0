"""The options of storages on the command line, as JSON."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["parsed_options"]


def parsed_options(text: str | None, hint: str = "--storage-options") -> dict[str, Any] | None:
    """Parse the value of such an option.

    Args:
        text: The value, or None.
        hint: Name of the option, for the message.

    Raises:
        click.BadParameter: it is no JSON object.
    """
    try:
        options = json.loads(text) if text is not None else None
    except ValueError:
        options = ()
    if options is not None and not isinstance(options, dict):
        raise click.BadParameter("it is no JSON object", param_hint=hint)
    return options
