"""What a hostile or broken server makes of a right answer about objects: pure functions of the answer and of chance.

The answers are those of a control plane: listings, sizes, places, refusals. Whatever comes out, a load through it ends
equal or with an error of the tree.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["MUTATIONS", "Told"]

NUMBERS = [b"0", b"-1", b"1", b"18446744073709551616", b"1e400", b"NaN", b"Infinity", b"1.5", b"true", b"9" * 4400]
STRANGE = [b"\x1b[31m", b"\x1b]0;title\x07", b"\r\nX: y", b"\x00", b"\xff\xfe", b"\xe2\x80\xae", b"<![x", b"&#0;"]
WORDS = ["/../../etc/passwd", "file:///etc/passwd", "http://[::1", "http://127.0.0.1:99999/", "%00", "\\", ""]
PLACES = [
    "ftp://127.0.0.1/x",
    "http://127.0.0.1:1/",
    "http://[",
    "/",
    "//",
    "file:///etc/passwd",
    "\x1b[31m",
    "http://a:b@c/",
]
STATUSES = [204, 206, 302, 304, 400, 401, 403, 404, 409, 412, 416, 418, 429, 451, 500, 501, 503, 505, 599]
_NUMBER = re.compile(rb"[0-9]+")
_TOKEN = re.compile(rb"[A-Za-z0-9_./-]{3,}")


@dataclass
class Told:
    """An answer; mutations change it in place.

    Attributes:
        status: Of its first line.
        headers: Names and values, as they are sent.
        body: What is sent after them.
        is_cut: The connection is closed behind it.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_cut: bool = field(default=False)

    def set_header(self, name: bytes, value: bytes) -> None:
        """Replace a header, or add it."""
        self.headers = [each for each in self.headers if each[0].lower() != name.lower()] + [(name, value)]


Mutation = Callable[[Told, random.Random], None]
MUTATIONS: list[Mutation] = []


def mutation(function: Mutation) -> Mutation:
    """Enter a function into the list."""
    MUTATIONS.append(function)
    return function


@mutation
def cut_short(reported: Told, drawn: random.Random) -> None:
    """Announce the whole body, and close the connection in it."""
    reported.body, reported.is_cut = reported.body[: drawn.randrange(len(reported.body) + 1)], True


@mutation
def shorten(reported: Told, drawn: random.Random) -> None:
    """Send a part of the body as if it were all."""
    reported.body = reported.body[: drawn.randrange(len(reported.body) + 1)]
    reported.set_header(b"Content-Length", str(len(reported.body)).encode())


@mutation
def flip_byte(reported: Told, drawn: random.Random) -> None:
    """Change one byte of the body."""
    if reported.body:
        at = drawn.randrange(len(reported.body))
        reported.body = (
            reported.body[:at] + bytes([reported.body[at] ^ (1 << drawn.randrange(8))]) + reported.body[at + 1 :]
        )


@mutation
def replace_number(reported: Told, drawn: random.Random) -> None:
    """Put another number, or what is none, in the place of one of the body."""
    reported.body = _with(reported.body, _NUMBER, drawn, drawn.choice(NUMBERS))
    reported.set_header(b"Content-Length", str(len(reported.body)).encode())


@mutation
def replace_token(reported: Told, drawn: random.Random) -> None:
    """Put a path, a URL or terminal codes in the place of a word of the body."""
    other = drawn.choice([*STRANGE, *(word.encode() for word in WORDS)])
    reported.body = _with(reported.body, _TOKEN, drawn, other)
    reported.set_header(b"Content-Length", str(len(reported.body)).encode())


@mutation
def insert_strange_bytes(reported: Told, drawn: random.Random) -> None:
    """Put control characters, or bytes that are no UTF-8, somewhere into the body."""
    at = drawn.randrange(len(reported.body) + 1)
    reported.body = reported.body[:at] + drawn.choice(STRANGE) + reported.body[at:]
    reported.set_header(b"Content-Length", str(len(reported.body)).encode())


@mutation
def repeat(reported: Told, drawn: random.Random) -> None:
    """Send the body several times over."""
    reported.body *= drawn.randrange(2, 5)
    reported.set_header(b"Content-Length", str(len(reported.body)).encode())


@mutation
def be_another(reported: Told, drawn: random.Random) -> None:
    """Send another document altogether."""
    reported.body = drawn.choice(
        [b"", b"{}", b"[]", b"null", b"<html>", b"<?xml version='1.0'?><a/>", b'{"items":5}', b"\x00" * 100]
    )
    reported.set_header(b"Content-Length", str(len(reported.body)).encode())


@mutation
def change_status(reported: Told, drawn: random.Random) -> None:
    """Send another status."""
    reported.status = drawn.choice(STATUSES)


@mutation
def redirect(reported: Told, drawn: random.Random) -> None:
    """Send the client to a place that is none, or none of its business."""
    reported.status = drawn.choice([301, 302, 303, 307, 308])
    reported.set_header(b"Location", drawn.choice(PLACES).encode())


@mutation
def replace_header(reported: Told, drawn: random.Random) -> None:
    """Put a strange value into one of the headers."""
    if reported.headers:
        name = drawn.choice(reported.headers)[0]
        reported.set_header(
            name, drawn.choice([*NUMBERS, b"\xff", b"\xe9", b"bytes 0-0/*", b"bytes 5-1/3", b"", b"gzip", b"x" * 9000])
        )


@mutation
def drop_header(reported: Told, drawn: random.Random) -> None:
    """Leave one of the headers out."""
    if reported.headers:
        reported.headers.remove(drawn.choice(reported.headers))
        reported.is_cut = True  # else a body without its length has no end


@mutation
def number_in_header(reported: Told, drawn: random.Random) -> None:
    """Change a number in one of the headers."""
    with_numbers = [(name, value) for name, value in reported.headers if _NUMBER.search(value)]
    if with_numbers:
        name, value = drawn.choice(with_numbers)
        reported.set_header(name, _with(value, _NUMBER, drawn, drawn.choice(NUMBERS)))
        reported.is_cut = True


def _with(text: bytes, pattern: re.Pattern[bytes], drawn: random.Random, other: bytes) -> bytes:
    found = list(pattern.finditer(text))
    if not found:
        return text + other
    match = drawn.choice(found)
    return text[: match.start()] + other + text[match.end() :]
