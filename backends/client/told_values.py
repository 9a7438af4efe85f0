"""What a server tells, taken for a value or refused as the server's fault: documents, names, sizes and words. Pure.

Guarantees: whatever the bytes are, an answer is a value of the kind that was asked for, or a `StorageError`. Names are
text that can be sent back; words (codes, request ids) are of letters that any terminal and log can show.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from streamer.core.errors import StorageError

__all__ = ["document_told", "name_told", "size_told", "word_told"]

MOST_BYTES = (1 << 63) - 1  # off_t of every system; the engine counts so, too

_NUMBER = re.compile(r"[0-9]{1,19}")  # longer ones Python itself may refuse to read
_WORD = re.compile(r"[\w.:=/-]{1,128}", re.ASCII)


def document_told(body: bytes) -> Any | None:
    """Read a JSON document; None where it is none, holds infinite numbers or is nested a thousand times.

    Example:
        >>> [document_told(body) for body in (b'{"a": 1}', b"[Infinity]", b"[" * 100_000)]
        [{'a': 1}, None, None]
    """
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def name_told(told: object, uri: str) -> str:
    """Read a name.

    Args:
        told: Text.
        uri: Of what holds it, without secrets.

    Raises:
        StorageError: it is not text, or of half characters (lone surrogates), which no URL can hold.
    """
    if isinstance(told, str) and told and not any("\ud800" <= letter <= "\udfff" for letter in told):
        return told
    raise StorageError("The server lists an object whose name is not text", uri=uri)


def size_told(told: object, uri: str) -> int:
    """Read a size.

    Args:
        told: A number, or its decimal digits.
        uri: Of the object, without secrets.

    Raises:
        StorageError: it is not a whole number, or none that a file can have.

    Example:
        >>> size_told("12", uri="s3://bucket/key")
        12
    """
    size_bytes = -1
    if isinstance(told, str) and _NUMBER.fullmatch(told):
        size_bytes = int(told)
    elif isinstance(told, int) and not isinstance(told, bool):
        size_bytes = told
    if 0 <= size_bytes <= MOST_BYTES:
        return size_bytes
    raise StorageError("The server tells a size that no file can have", uri=uri)


def word_told(told: object) -> str | None:
    r"""Take a word, or None for anything else.

    Example:
        >>> [word_told(told) for told in ("tx0000-1", "a b", "caf\xe9", 1)]
        ['tx0000-1', None, None, None]
    """
    return told if isinstance(told, str) and _WORD.fullmatch(told) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
