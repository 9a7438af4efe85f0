"""Refuses methods of a file system that change files or folders."""

from __future__ import annotations

import io
from typing import Any, NoReturn

__all__ = ["ReadOnly", "WholeFiles", "refusal"]


def refusal() -> io.UnsupportedOperation:
    """Return the error, which is an `OSError` and a `ValueError`."""
    return io.UnsupportedOperation(
        "streamer:: reads, and writes whole files: it does not append, copy, move or remove. Do that with the file "
        "system inside: the URL without streamer::, or its attribute fs"
    )


class WholeFiles:
    """The methods of a file system that copy, move and remove; some of fsspec's defaults would read each byte."""

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise refusal()

    copy = cp = cp_file = mv = move = rename = rmdir = rm = rm_file = delete = _refuse


class ReadOnly(WholeFiles):
    """All methods that change something; some of fsspec's defaults would silently do nothing."""

    put = put_file = upload = pipe = pipe_file = touch = write_text = write_bytes = WholeFiles._refuse
    mkdir = makedir = makedirs = mkdirs = WholeFiles._refuse
