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
from json import JSONDecodeError
from typing import Any

from streamer.core.quoting import quoted

__all__ = ["Reader", "decode_utf8", "loads"]

MAX_DEPTH = 127  # what the reference's JSON reader (serde_json) allows

_STRUCTURE = b'"[]{}'
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

_SPACE = re.compile(r"[ \t\n\r]*")  # less than what Python takes for a space

# A value that is no array or object, or one without a bracket inside, not even inside a string.
_FLAT = re.compile(r'[^\[{]|[\[{][^"\\\[\]{}]*(?:"[^"\\\[\]{}]*"[^"\\\[\]{}]*)*[\]}]')

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
    """Read a document that is one JSON value.

    Raises:
        ValueError: the text is not JSON, or is JSON that two readers would understand differently.

    Example:
        >>> loads('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    value, end = Reader(text).read(_after_space(text, 0))
    end = _after_space(text, end)
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)
    return value


class Reader:
    """Reads single values out of a longer text.

    Raises:
        ValueError: a string of the text holds a lone surrogate.
    """

    def __init__(self, text: str) -> None:
        # One character is found many times faster than two, and usually is not there.
        if "\\" in text and any(escape["lone"] for escape in _ESCAPE.finditer(text)):
            raise ValueError("a string holds a lone surrogate, which is no character")
        self._text = text
        self._decoder = _decoder(text)
        self._is_shallow = False

    def read(self, position: int) -> tuple[Any, int]:
        """Read the value that begins at `position`; return it and the position after it.

        Raises:
            ValueError: there is no JSON value, or one that `loads` refuses. `JSONDecodeError.pos` says where.
        """
        try:
            self._refuse_deep_nesting(position)
            return self._decoder.raw_decode(self._text, position)
        except RecursionError as error:
            raise ValueError("brackets are nested deeper than the stack that is left") from error
        except MemoryError as error:
            raise ValueError("the document needs more memory than there is") from error

    def _refuse_deep_nesting(self, position: int) -> None:
        # The usual metadata is flat, and spares a large header the search through all of it.
        if self._is_shallow or _FLAT.match(self._text, position):
            return
        if _depth(self._text) > MAX_DEPTH:
            raise ValueError(f"brackets are nested deeper than {MAX_DEPTH}")
        self._is_shallow = True


def _after_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


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
        parse_int=_whole_number if "-" in text and "-0" in text else None,
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
