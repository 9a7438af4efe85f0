"""How a value read from a checkpoint is shown in a message: on one line, escaped and cut, whatever it holds."""

from __future__ import annotations

import json

__all__ = ["quoted"]

SHOWN_CHARACTERS = 80  # a whole tensor name of any known model, one line of a terminal


def quoted(value: object) -> str:
    r"""Quote a string, or describe another value, read from JSON.

    Example:
        >>> quoted("line\nbreak")
        "'line\\nbreak'"
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if not isinstance(value, str):
        return json.dumps(value)[:SHOWN_CHARACTERS]
    # Cut before quoting: a name may be megabytes long.
    return repr(value[:SHOWN_CHARACTERS]) + ("…" if len(value) > SHOWN_CHARACTERS else "")
