"""Calls Run:ai's C interface of our library as a program in C would, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from streamer.compat.runai import library_path

__all__ = ["Response", "Started", "Wanted", "library", "started"]

LISTED = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)


class Device(ctypes.Structure):
    """Passed by value."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Wanted(NamedTuple):
    """One range of a file, and the address that its bytes go to."""

    offset: int
    size: int
    target: int


class Response(NamedTuple):
    """What `runai_file_streamer_response` gives."""

    code: int
    submission: int
    file: int
    range: int
    is_last: bool


def library() -> ctypes.CDLL:
    """Load the library, and declare what ctypes would not guess."""
    loaded = ctypes.CDLL(library_path())
    loaded.runai_file_streamer_response_str.restype = ctypes.c_char_p
    loaded.runai_file_streamer_end.argtypes = [ctypes.c_void_p]
    loaded.runai_file_streamer_end.restype = None
    return loaded


def texts(values: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*[value.encode("utf-8", "surrogateescape") for value in values])


class Started:
    """A streamer."""

    def __init__(self) -> None:
        self.library = library()
        self.handle = ctypes.c_void_p()
        assert self.library.runai_file_streamer_start(ctypes.byref(self.handle)) == 0
        assert self.handle

    def request(self, files: dict[str, list[Wanted]]) -> tuple[int, int]:
        """Return the code, and the number of the submission."""
        ranges = [each for wanted in files.values() for each in wanted]
        number, count = ctypes.c_uint64(), len(ranges)
        code = self.library.runai_file_streamer_request(
            self.handle,
            ctypes.byref(number),
            ctypes.c_uint32(len(files)),
            texts(list(files)),
            (ctypes.c_uint32 * len(files))(*map(len, files.values())),
            (ctypes.c_size_t * count)(*[each.offset for each in ranges]),
            (ctypes.c_size_t * count)(*[each.size for each in ranges]),
            (ctypes.c_void_p * count)(*[each.target for each in ranges]),
            Device(0, 0),
        )
        return code, number.value

    def submit(self, files: dict[str, list[Wanted]]) -> int:
        """Send a request that is accepted."""
        code, number = self.request(files)
        assert code == 0
        return number

    def response(self, timeout_ms: int = 60_000) -> Response:
        """Wait for a response."""
        number, file, index, is_last = ctypes.c_uint64(), ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int()
        code = self.library.runai_file_streamer_response(
            self.handle, *map(ctypes.byref, (number, file, index, is_last)), ctypes.c_uint(timeout_ms)
        )
        return Response(code, number.value, file.value, index.value, bool(is_last.value))

    def responses(self, count: int) -> list[Response]:
        """Wait for so many responses, and see that there is no other."""
        found = [self.response() for _ in range(count)]
        assert self.response(1).code == 16
        return found

    def set_credentials(self, **values: str) -> int:
        """Set credentials."""
        return int(
            self.library.runai_file_streamer_set_credentials(
                self.handle, texts(list(values)), texts(list(values.values())), ctypes.c_uint(len(values))
            )
        )

    def listed(
        self, folder: str, *, is_recursive: bool = True, allowed: Sequence[str] = (), ignored: Sequence[str] = ()
    ) -> tuple[int, list[tuple[str, int]]]:
        """List a folder."""
        found: list[tuple[str, int]] = []
        tell = LISTED(lambda path, size, _: found.append((path.decode(), size)))
        patterns = [part for each in (allowed, ignored) for part in (texts(each), ctypes.c_uint(len(each)))]
        code = self.library.runai_file_streamer_list_files(
            self.handle, folder.encode(), int(is_recursive), *patterns, tell, None
        )
        return code, found

    def end(self) -> None:
        """End it."""
        self.library.runai_file_streamer_end(self.handle)


@contextmanager
def started() -> Iterator[Started]:
    """Start a streamer for the time of a block."""
    streamer = Started()
    try:
        yield streamer
    finally:
        streamer.end()
