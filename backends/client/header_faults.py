r"""Says which character of a request header cannot be sent; shows at most the header's name, if it is usual. Pure.

A line end would begin another header, or another request; a NUL ends the header for some servers. Other characters that
RFC 9110 forbids in a value are left to the server, because some clients send bytes of UTF-8 in values.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from streamer.backends.client.option_types import is_sendable

__all__ = ["fault_of"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_USUAL_NAME = re.compile(r"[A-Za-z]{1,20}(-[A-Za-z]{1,20}){0,5}")  # words alone; no secret token looks like this
# A lone surrogate cannot be encoded in UTF-8, so a message shows its number instead of a name.
_NAMES = {"\n": "a line feed (\\n)", "\r": "a carriage return (\\r)", "\0": "a NUL", " ": "a space", ":": "a colon"}


def fault_of(name: str, value: str) -> str | None:
    r"""Describe the first character that makes a header unfit to be sent; None for a header that can be.

    Example:
        >>> fault_of("authorization", "Bearer S3CR3T\n")
        "The value of 'authorization' in headers holds a line feed (\\n) at its end"
        >>> fault_of("x: S3CR3T", "")
        'A name in headers holds a colon as its character 2'
    """
    if not name:
        return "A name in headers is empty"
    if not _TOKEN.fullmatch(name):
        return f"A name in headers holds {_described(name, lambda letter: not _TOKEN.fullmatch(letter))}"
    if fault := _described(value, lambda letter: letter in "\r\n\0" or not is_sendable(letter)):
        shown = repr(name) if _USUAL_NAME.fullmatch(name) else "an unusual name"
        return f"The value of {shown} in headers holds {fault}"
    return None


def _described(text: str, is_wrong: Callable[[str], bool]) -> str:
    """Describe the first wrong character and its place; empty if there is none."""
    at = next((number for number, letter in enumerate(text) if is_wrong(letter)), None)
    if at is None:
        return ""
    place = f"as its character {at + 1}" if text[at:].strip() else "at its end"
    letter = text[at]
    return f"{_NAMES.get(letter) or f'U+{ord(letter):04X}'} {place}"
