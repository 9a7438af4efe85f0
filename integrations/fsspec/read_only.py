"""Refuses the writing methods of a file system."""

from __future__ import annotations

import io
from typing import Any, NoReturn

__all__ = ["ReadOnly", "refusal"]


def refusal() -> io.UnsupportedOperation:
    """Return the error, which is an `OSError` and a `ValueError`."""
    return io.UnsupportedOperation(
        "streamer:: only reads. Write through the file system inside: the URL without streamer::, or its attribute fs"
    )


class ReadOnly:
    """The writing methods of a file system, which raise; some of fsspec's defaults would silently do nothing."""

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise refusal()

    copy = cp = cp_file = mv = move = rename = _refuse
    put = put_file = upload = pipe = pipe_file = touch = write_text = write_bytes = _refuse
    mkdir = makedir = makedirs = mkdirs = rmdir = rm = rm_file = delete = _refuse
