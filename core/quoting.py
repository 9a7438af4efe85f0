r"""Shows text of a checkpoint, a server or a file name on one line, with every unprintable character escaped.

Escape sequences, line breaks, marks that reverse the direction of writing and lone surrogates are written as Python
writes them: ``\x1b``, ``\n``, ``\u202e``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

SHOWN_CHARACTERS = 80  # one line of a terminal; longer than the tensor names of common models


def printable(text: str) -> str:
    r"""Escape every character that is not printable.

    Errors and log lines of this package call this function themselves, so callers pass foreign text unchanged.

    Example:
        >>> print(printable("models\x1b[2J/a\nb"))
        models\x1b[2J/a\nb
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(lines: Iterable[str]) -> str:
    """Return lines as one text, each as `printable` returns it."""
    return "\n".join(map(printable, lines))


def quoted(value: object) -> str:
    r"""Quote a string, or describe another value, read from JSON.

    Example:
        >>> quoted("line\nbreak")
        "'line\\nbreak'"
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    # The text is cut before it is quoted: a name may be megabytes long.
    text = value if isinstance(value, str) else json.dumps(value)
    shown = text[:SHOWN_CHARACTERS]
    return (repr(shown) if isinstance(value, str) else shown) + ("…" if len(text) > SHOWN_CHARACTERS else "")


def size_text(size_bytes: int) -> str:
    """Return the text of a size, with three digits and a decimal unit.

    Example:
        >>> size_text(16_060_556_376)
        '16.1 GB'
    """
    from tqdm import tqdm  # noqa: PLC0415 (takes 20 ms)

    text: str = tqdm.format_sizeof(size_bytes)
    number = text.rstrip("kMGTPEZY")
    return f"{number} {text[len(number) :]}B"


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in singular or plural.

    Example:
        >>> counted(1, "shard"), counted(2, "shard")
        ('1 shard', '2 shards')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def names_text(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and the number of the others.

    Example:
        >>> names_text(["a.pt", "b.pt"]), names_text(["a.pt", "b.pt", "c.pt", "d.pt"], most=2)
        ('a.pt, b.pt', 'a.pt, b.pt and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
