"""JSON as RFC 8259 means it, read from a source nobody trusts.

Guarantees: what is accepted has one meaning in every reader, and reading it uses a bounded native stack.
Refuses, always with ValueError: duplicate keys, NaN and Infinity, lone surrogates, a byte order mark, invalid
UTF-8, anything before or after the value, nesting deeper than 127.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from streamer.core.quoting import quoted

__all__ = ["decode_utf8", "loads"]

MAX_DEPTH = 127  # what the reference's JSON reader (serde_json) allows

_STRUCTURE = b'"[]{}'
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

# Every escape is consumed from its backslash on, so an escaped backslash never starts another escape; a
# surrogate that is not part of a pair is left to the named group.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F])|.)", re.DOTALL
)


def decode_utf8(data: bytes | memoryview) -> str:
    """Decode the bytes of a document that was read whole.

    Raises:
        ValueError: the bytes are not UTF-8; says which byte.
    """
    return str(data, "utf-8")


def loads(text: str) -> Any:
    """Read one JSON value.

    Raises:
        ValueError: the text is not JSON, or is JSON that two readers would understand differently.

    Example:
        >>> loads('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    if "\\u" in text and any(escape["lone"] for escape in _ESCAPE.finditer(text)):
        raise ValueError("a string holds a lone surrogate, which is no character")
    try:
        if _depth(text) > MAX_DEPTH:
            raise ValueError(f"brackets are nested deeper than {MAX_DEPTH}")
        return _decoder(text).decode(text)
    except RecursionError as error:
        raise ValueError("brackets are nested deeper than the stack that is left") from error
    except MemoryError as error:
        raise ValueError("the document needs more memory than there is") from error


def _depth(text: str) -> int:
    """Find the deepest nesting without recursion, so that the recursive reader only meets shallow documents."""
    skeleton = text.encode()
    if b"\\" in skeleton:
        skeleton = re.sub(rb"\\.", b"", skeleton, flags=re.DOTALL)
    # Dropping two quotes that touch changes for no bracket whether it stands inside a string.
    skeleton = skeleton.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    skeleton = re.sub(rb'"[^"]*"?', b"", skeleton)
    return max(accumulate(map(_STEP.__getitem__, skeleton)), default=0)


def _decoder(text: str) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_without_duplicates,
        parse_constant=_refuse_constant,
        # A hook is called for every number, so it is set only where a number may need it.
        parse_int=_whole_number if "-0" in text else None,
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {quoted(twice)} occurs twice in one object")
    return members


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _whole_number(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)  # the sign would be lost in an int
