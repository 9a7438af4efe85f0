"""The headers that the user adds to requests, from options of aiohttp: logins, and headers of any name. Pure.

Refuses headers that would break reading by ranges, and characters that cannot be sent; the message shows at most the
header's name, if it is usual. A line end would begin another header, or another request; a NUL ends the header for some
servers. Other characters that RFC 9110 forbids in a value are left to the server, because some clients send bytes of
UTF-8 in values.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from streamer.backends.client.option_checks import is_sendable
from streamer.core.errors import OptionError

_CONDITIONS = frozenset({"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"})
_OF_BODIES = frozenset({"content-encoding", "content-length", "content-range", "trailer", "transfer-encoding"})
_FORBIDDEN = _CONDITIONS | {"host", "range"}

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_USUAL_NAME = re.compile(r"[A-Za-z]{1,20}(-[A-Za-z]{1,20}){0,5}")  # words alone; no secret token looks like this
# A lone surrogate cannot be encoded in UTF-8, so a message shows its number instead of a name.
_NAMES = {"\n": "a line feed (\\n)", "\r": "a carriage return (\\r)", "\0": "a NUL", " ": "a space", ":": "a colon"}


def login_of(value: Any) -> tuple[str, str] | None:
    """Read ``aiohttp.BasicAuth`` or a pair of user and password; None for anything else.

    Example:
        >>> [login_of(value) for value in (("user", "password"), ["user", "password"], "user:password")]
        [('user', 'password'), ('user', 'password'), None]
    """
    try:
        user, password = (value.login, value.password) if hasattr(value, "login") else value
    except (TypeError, ValueError):
        return None
    return str(user), str(password)


def basic_authorization(value: Any) -> str | None:
    """Return the value of the header ``Authorization`` for a login; None if the value is no login.

    Example:
        >>> basic_authorization(("user", "password"))
        'Basic dXNlcjpwYXNzd29yZA=='
    """
    login = login_of(value)
    if login is None:
        return None
    return "Basic " + b64encode(":".join(login).encode(getattr(value, "encoding", "utf-8"))).decode()


def own_headers(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the option ``headers``, by names in lower case, without ``Accept-Encoding``.

    ``Accept-Encoding`` is always ``identity``, because a range of a compressed body holds other bytes.
    """
    try:
        named = ((str(name).lower(), str(value)) for name, value in dict(source.get("headers") or {}).items())
        return {name: value for name, value in named if name != "accept-encoding"}
    except (TypeError, ValueError):
        raise OptionError(
            "headers must be a mapping of names to values", hint="Write them as {'Authorization': 'Bearer …'}"
        ) from None


def check_headers(headers: Mapping[str, str]) -> None:
    """Check headers with names in lower case."""
    for name in headers:
        if name in _FORBIDDEN:
            raise OptionError(f"headers cannot hold {name!r}: requests for ranges set this header themselves")
        if name in _OF_BODIES:
            raise OptionError(
                f"headers cannot hold {name!r}: it would say something else of the body than what is sent"
            )
        if (fault := fault_of(name, headers[name])) is not None:
            raise OptionError(fault, hint="Headers are plain text: remove quotes, spaces and line ends around them")


def fault_of(name: str, value: str) -> str | None:
    r"""Describe the first character that makes a header unfit to be sent; None if the header can be sent.

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
