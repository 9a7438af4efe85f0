"""JSON as RFC 8259 defines it, read from an untrusted source.

Guarantees: an accepted text has one meaning in every reader; reading takes linear time and a bounded native stack. A
large document is read member by member, and each value except strings in a window of bounded size. So any document
costs only a few times the memory of its text.

Refuses, always with ValueError: duplicate keys, NaN and Infinity, lone surrogates, a byte order mark, invalid
UTF-8, anything before or after the value, nesting deeper than 127.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from json import JSONDecodeError
from typing import Any

from streamer.core.quoting import quoted

MAX_DEPTH = 127  # the limit of the reference's JSON reader (serde_json)

SPACE = r"[ \t\n\r]*"  # fewer characters than Python's own spaces
# Ends before the quote of the next member or before the closing brace, so nothing is skipped between them.
SEPARATOR = rf'{SPACE}(?:,{SPACE}(?=")|(?=\}}))'

SHOWN_DIGITS = 20  # the digits of the largest number of 64 bits

_SPACE = re.compile(SPACE)
_OPENING = re.compile(rf'\{{{SPACE}(?=["}}])')
_COLON = re.compile(rf"{SPACE}:{SPACE}")
_SEPARATOR = re.compile(SEPARATOR)
# A member without escapes whose value is a string, or an empty match, so that a search never skips to a later member.
_PLAIN_MEMBER = re.compile(rf'"([^"\\\x00-\x1f]*)"{SPACE}:{SPACE}"([^"\\\x00-\x1f]*)"{SEPARATOR}|')

_STRUCTURE = b'"[]{}'
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# A value that is no array or object, or an array or object without a bracket inside, not even inside a string.
_FLAT = re.compile(r'[^\[{]|[\[{][^"\\\[\]{}]*(?:"[^"\\\[\]{}]*"[^"\\\[\]{}]*)*[\]}]')
# Without such an escape no string of a text holds a surrogate; with one, all strings are checked.
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
SHORT_WINDOW = 1 << 10  # characters
_END_OF_WINDOW = 16  # characters: the position of an error about a cut escape or literal may be this far before the end


def decode_utf8(data: bytes | memoryview) -> str:
    """Decode the bytes of a document that was read whole."""
    return str(data, "utf-8")


def loads(text: str) -> Any:
    """Read a document that is one JSON value.

    Example:
        >>> loads('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    reader = JsonReader(text)
    value, end = reader.read(reader.begin)
    reader.check_end(end)
    return value


class JsonReader:
    """Reads single values out of a longer text.

    Attributes:
        begin: Position of the first value.
    """

    def __init__(self, text: str, *, window: int | None = None) -> None:
        self._text = text
        self._window = window
        self._decoder = _decoder(may_hold_odd_numbers="-" in text and "-0" in text)
        self._is_shallow = False
        # A search for one character is many times faster than for two, and usually finds none.
        self._may_hold_surrogates = "\\" in text and _SURROGATE_ESCAPE.search(text) is not None
        self.begin = self._after_space(0)

    def read(self, position: int) -> tuple[Any, int]:
        """Read the value that begins at `position`; return it and the position after it."""
        try:
            if self._window is None or self._text.startswith('"', position):
                self._refuse_deep_nesting(position)
                value, end = self._decoded(self._text, position)
            else:
                value, end = self._read_in_window(position, self._window)
        except RecursionError as error:
            raise ValueError("brackets are nested deeper than the stack that is left") from error
        except MemoryError as error:
            raise ValueError("the document needs more memory than there is") from error
        if self._may_hold_surrogates:
            _refuse_lone_surrogates(value)
        return value, end

    def read_members(self, position: int, read_value: Callable[[str, int], int]) -> int:
        """Read the object that begins at `position`, one member after the other; return the position after it."""
        position = self._after(_OPENING, position, "Expecting an object")
        while self._text[position] == '"':
            name, position = self.read(position)
            position = self.after_value(read_value(name, self.after_name(position)))
        return position + 1

    def read_texts(self, position: int, add: Callable[[str, Any], None]) -> int:
        """Read an object of strings as `read_members` does, but faster for strings without escapes."""
        position = self._after(_OPENING, position, "Expecting an object")
        while self._text[position] == '"':
            for match in _PLAIN_MEMBER.finditer(self._text, position):
                name, value = match.groups()
                if name is None:
                    break
                add(name, value)
                position = match.end()
            if self._text[position] == '"':
                name, position = self.read(position)
                value, position = self.read(self.after_name(position))
                add(name, value)
                position = self.after_value(position)
        return position + 1

    def is_object(self, position: int) -> bool:
        """Say whether an object begins at this position."""
        return self._text.startswith("{", position)

    def after_name(self, position: int) -> int:
        """Skip the colon after a member's name."""
        return self._after(_COLON, position, "Expecting ':' delimiter")

    def after_value(self, position: int) -> int:
        """Skip the separator before the next member, or the space before the brace that closes the object."""
        return self._after(_SEPARATOR, position, "Expecting another member or the closing brace")

    def check_end(self, position: int) -> None:
        """Refuse any characters except space from this position on."""
        end = self._after_space(position)
        if end != len(self._text):
            raise JSONDecodeError("Extra data", self._text, end)

    def _decoded(self, text: str, position: int) -> tuple[Any, int]:
        try:
            return self._decoder.raw_decode(text, position)
        except JSONDecodeError:
            raise
        except ValueError:  # raised by a hook, or by Python for a long number
            pass
        return _decoder(may_hold_odd_numbers=True).raw_decode(text, position)

    def _read_in_window(self, position: int, most: int) -> tuple[Any, int]:
        """Read a value, first in a short window: nearly all values are short, and a short window is copied quickly."""
        for size in (SHORT_WINDOW, most):
            window = self._text[position : position + size + 1]
            result = self._read_start(window, position, is_cut=len(window) > size)
            if result is not None:
                return result
        raise ValueError(f"the value at character {position} takes more than {most} characters")

    def _read_start(self, window: str, position: int, *, is_cut: bool) -> tuple[Any, int] | None:
        """Read a value from a window of the text; None if it may continue after the window."""
        last = len(window) - 1 if is_cut else len(window)
        try:
            most = MAX_DEPTH - 1  # the value is inside of an object
            if window.count("[") + window.count("{") > most and _is_deep(window, most):
                raise ValueError(f"brackets are nested deeper than {MAX_DEPTH}")
            value, end = self._decoded(window, 0)
        except JSONDecodeError as error:
            if is_cut and (error.pos >= last - _END_OF_WINDOW or error.msg.startswith("Unterminated string")):
                return None
            raise JSONDecodeError(error.msg, self._text, position + error.pos) from None
        return None if is_cut and end > last else (value, position + end)

    def _refuse_deep_nesting(self, position: int) -> None:
        # Usual metadata is flat; for it, a large header need not be searched as a whole.
        if self._is_shallow or _FLAT.match(self._text, position):
            return
        if _is_deep(self._text, MAX_DEPTH):
            raise ValueError(f"brackets are nested deeper than {MAX_DEPTH}")
        self._is_shallow = True

    def _after(self, pattern: re.Pattern[str], position: int, expectation: str) -> int:
        match = pattern.match(self._text, position)
        if match is None:
            raise JSONDecodeError(expectation, self._text, position)
        return match.end()

    def _after_space(self, position: int) -> int:
        space = _SPACE.match(self._text, position)
        return space.end() if space else position


def _is_deep(text: str, most: int) -> bool:
    """Say, without recursion, whether brackets nest deeper: only shallow documents may reach the recursive reader."""
    skeleton = text.encode()
    if b"\\" in skeleton:  # only escapes of quotes and backslashes matter
        skeleton = skeleton.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two adjacent quotes can be dropped: every bracket stays inside or outside of strings, as before.
    skeleton = skeleton.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    skeleton = re.sub(rb'"[^"]*"?', b"", skeleton)
    return any(depth > most for depth in accumulate(map(_STEP.__getitem__, skeleton)))


@lru_cache(maxsize=2)
def _decoder(*, may_hold_odd_numbers: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_without_duplicates,
        parse_constant=_refuse_constant,
        # A hook is called for every number, so it is only set if a number may need it.
        parse_int=_whole_number if may_hold_odd_numbers else None,
    )


def refuse_duplicate(members: Mapping[str, object], name: str) -> None:
    """Refuse a member's name that its object already holds."""
    if name in members:
        raise ValueError(f"key {quoted(name)} occurs twice in one object")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: dict[str, None] = {}
        for key, _ in pairs:
            refuse_duplicate(seen, key)
            seen[key] = None
    return members


def _refuse_lone_surrogates(value: Any) -> None:
    """Refuse lone surrogates in all strings of a value; the recursion is at most `MAX_DEPTH` deep."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a string holds a lone surrogate, which is no character") from None
    elif isinstance(value, list):
        for each in value:
            _refuse_lone_surrogates(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            _refuse_lone_surrogates(name)
            _refuse_lone_surrogates(each)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _whole_number(text: str) -> int | float:
    try:
        return -0.0 if text == "-0" else int(text)  # the sign would be lost in an int
    except ValueError:
        raise ValueError(f"the number {text[:SHOWN_DIGITS]}… has too many digits") from None
