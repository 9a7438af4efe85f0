"""The common bases of files that have a fixed size and are read at a position."""

from __future__ import annotations

import io


class Positioned:
    """Keeps the position of a file that can be read and sought."""

    def __init__(self, size_bytes: int) -> None:
        self._file_bytes, self._position = size_bytes, 0

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: it can be sought."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, which may be after the end."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file_bytes}[whence]
        if begin + offset < 0:
            raise ValueError("seek before the start of the file")
        self._position = begin + offset
        return self._position


class PositionedFile(Positioned, io.RawIOBase):
    """A file without a buffer; a subclass defines ``readinto``."""
