"""Decompresses an item: zstd, which torch offers as an extension of ``FileSystemWriter``.

The library is one that torch itself uses, or Python's own from 3.14 on. Refuses any other transformation, and an item
that unpacks to more bytes than its tensor needs.
"""

from __future__ import annotations

import io
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from streamer.core.errors import FormatError
from streamer.core.quoting import quoted, size_text

__all__ = ["MOST_OBJECT_BYTES", "check_transforms", "decompressed"]

ZSTD = "stream.zstd"
LIBRARIES = ("zstandard", "pyzstd", "compression.zstd")
MOST_OBJECT_BYTES = 1 << 30  # the limit of a value that is no tensor: the metadata do not contain its size


def check_transforms(name: str, transforms: tuple[str, ...], uri: str) -> None:
    """Check that the transformations of an item can be undone."""
    others = [each for each in transforms if not each.startswith(f"{ZSTD}/1")]
    if others:
        raise FormatError(
            f"item {quoted(name)} was saved with {quoted(', '.join(others))}, which this reader cannot undo",
            uri=uri,
            hint="Load it with torch's own FsspecReader, or save the checkpoint without extensions",
        )
    if transforms and _library() is None:
        raise FormatError(
            f"item {quoted(name)} is compressed with zstd, and no library for that is installed",
            uri=uri,
            hint="pip install zstandard",
        )


def decompressed(data: bytes, name: str, transforms: tuple[str, ...], most_bytes: int, label: str) -> bytes:
    """Undo the transformations that `check_transforms` has accepted."""
    for _ in transforms:
        try:
            data = _reader(data).read(most_bytes + 1)
        except Exception as error:  # each library has its own exception classes
            raise FormatError(
                f"item {quoted(name)} cannot be decompressed: {error}",
                uri=label,
                hint="Save or upload the checkpoint again",
            ) from error
        if len(data) > most_bytes:
            raise FormatError(
                f"item {quoted(name)} unpacks to more than {size_text(most_bytes)}",
                uri=label,
                hint="It is damaged: save or upload the checkpoint again",
            )
    return data


def _library() -> str | None:
    return next((name for name in LIBRARIES if _is_installed(name)), None)


def _is_installed(name: str) -> bool:
    package = name.partition(".")[0]
    return find_spec(package) is not None and (package == name or find_spec(name) is not None)


def _reader(data: bytes) -> Any:
    name = _library()
    assert name is not None  # `check_transforms` has checked it
    module, file = import_module(name), io.BytesIO(data)
    if name == "zstandard":
        return module.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return module.ZstdFile(file)
