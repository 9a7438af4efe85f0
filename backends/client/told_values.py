"""What a server tells, taken for a value or refused as the server's fault: documents, names, sizes and words. Pure.

Guarantees: whatever the bytes are, an answer is a value of the kind that was asked for, or a `StorageError`. Names are
text that can be sent back; words (codes, request ids) are of letters that any terminal and log can show.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from streamer.core.errors import StorageError
from streamer.core.store.sources import MAX_SIZE_BYTES

__all__ = ["document_told", "is_directly_in", "name_told", "size_told", "word_told"]

MOST_CHARACTERS = 4096  # S3, Google and Azure have 1024; the Hub's are of Git

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
        StorageError: it is not text, longer than any store has it, or of half characters (lone surrogates), which no
            URL can hold.
    """
    if not isinstance(told, str) or not told or not _is_whole(told):
        raise StorageError("The server lists an object whose name is not text", uri=uri)
    if len(told) > MOST_CHARACTERS:
        raise StorageError(f"The server lists an object whose name has {len(told)} characters", uri=uri)
    return told


def is_directly_in(folder: str, name: str, uri: str) -> bool:
    """Tell whether a listed object is a file directly in a folder, and neither in one below nor a stand-in for one.

    Args:
        folder: With the slash at its end, or empty.
        name: Of the object.
        uri: Of the folder, without secrets.

    Raises:
        StorageError: it is not in the folder at all.
    """
    if not name.startswith(folder):
        raise StorageError("The server lists objects that are not in the folder", uri=uri, hint="Check the endpoint")
    return len(name) > len(folder) and "/" not in name[len(folder) :]


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
    if 0 <= size_bytes <= MAX_SIZE_BYTES:
        return size_bytes
    raise StorageError("The server tells a size that no file can have", uri=uri)


def word_told(told: object) -> str | None:
    r"""Take a word, or None for anything else.

    Example:
        >>> [word_told(told) for told in ("tx0000-1", "a b", "caf\xe9", 1)]
        ['tx0000-1', None, None, None]
    """
    return told if isinstance(told, str) and _WORD.fullmatch(told) else None


def _is_whole(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
