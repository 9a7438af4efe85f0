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
def cut_short(told: Told, drawn: random.Random) -> None:
    """Announce the whole body, and close the connection in it."""
    told.body, told.is_cut = told.body[: drawn.randrange(len(told.body) + 1)], True


@mutation
def shorten(told: Told, drawn: random.Random) -> None:
    """Send a part of the body as if it were all."""
    told.body = told.body[: drawn.randrange(len(told.body) + 1)]
    told.set_header(b"Content-Length", str(len(told.body)).encode())


@mutation
def flip_byte(told: Told, drawn: random.Random) -> None:
    """Change one byte of the body."""
    if told.body:
        at = drawn.randrange(len(told.body))
        told.body = told.body[:at] + bytes([told.body[at] ^ (1 << drawn.randrange(8))]) + told.body[at + 1 :]


@mutation
def replace_number(told: Told, drawn: random.Random) -> None:
    """Put another number, or what is none, in the place of one of the body."""
    told.body = _with(told.body, _NUMBER, drawn, drawn.choice(NUMBERS))
    told.set_header(b"Content-Length", str(len(told.body)).encode())


@mutation
def replace_token(told: Told, drawn: random.Random) -> None:
    """Put a path, a URL or terminal codes in the place of a word of the body."""
    other = drawn.choice([*STRANGE, *(word.encode() for word in WORDS)])
    told.body = _with(told.body, _TOKEN, drawn, other)
    told.set_header(b"Content-Length", str(len(told.body)).encode())


@mutation
def insert_strange_bytes(told: Told, drawn: random.Random) -> None:
    """Put control characters, or bytes that are no UTF-8, somewhere into the body."""
    at = drawn.randrange(len(told.body) + 1)
    told.body = told.body[:at] + drawn.choice(STRANGE) + told.body[at:]
    told.set_header(b"Content-Length", str(len(told.body)).encode())


@mutation
def repeat(told: Told, drawn: random.Random) -> None:
    """Send the body several times over."""
    told.body *= drawn.randrange(2, 5)
    told.set_header(b"Content-Length", str(len(told.body)).encode())


@mutation
def be_another(told: Told, drawn: random.Random) -> None:
    """Send another document altogether."""
    told.body = drawn.choice(
        [b"", b"{}", b"[]", b"null", b"<html>", b"<?xml version='1.0'?><a/>", b'{"items":5}', b"\x00" * 100]
    )
    told.set_header(b"Content-Length", str(len(told.body)).encode())


@mutation
def change_status(told: Told, drawn: random.Random) -> None:
    """Send another status."""
    told.status = drawn.choice(STATUSES)


@mutation
def redirect(told: Told, drawn: random.Random) -> None:
    """Send the client to a place that is none, or none of its business."""
    told.status = drawn.choice([301, 302, 303, 307, 308])
    told.set_header(b"Location", drawn.choice(PLACES).encode())


@mutation
def replace_header(told: Told, drawn: random.Random) -> None:
    """Put a strange value into one of the headers."""
    if told.headers:
        name = drawn.choice(told.headers)[0]
        told.set_header(
            name, drawn.choice([*NUMBERS, b"\xff", b"\xe9", b"bytes 0-0/*", b"bytes 5-1/3", b"", b"gzip", b"x" * 9000])
        )


@mutation
def drop_header(told: Told, drawn: random.Random) -> None:
    """Leave one of the headers out."""
    if told.headers:
        told.headers.remove(drawn.choice(told.headers))
        told.is_cut = True  # else a body without its length has no end


@mutation
def number_in_header(told: Told, drawn: random.Random) -> None:
    """Change a number in one of the headers."""
    with_numbers = [(name, value) for name, value in told.headers if _NUMBER.search(value)]
    if with_numbers:
        name, value = drawn.choice(with_numbers)
        told.set_header(name, _with(value, _NUMBER, drawn, drawn.choice(NUMBERS)))
        told.is_cut = True


def _with(text: bytes, pattern: re.Pattern[bytes], drawn: random.Random, other: bytes) -> bytes:
    found = list(pattern.finditer(text))
    if not found:
        return text + other
    match = drawn.choice(found)
    return text[: match.start()] + other + text[match.end() :]
