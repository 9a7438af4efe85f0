"""A file of known size that is read at a position: what every such file does alike."""

from __future__ import annotations

import io

__all__ = ["PositionedFile"]


class PositionedFile(io.RawIOBase):
    """Keeps the position of a file that can be read and sought; who derives from it writes ``readinto``.

    Args:
        size_bytes: Of the file.
    """

    def __init__(self, size_bytes: int) -> None:
        self._file_bytes, self._position = size_bytes, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be sought."""
        return True

    def tell(self) -> int:
        """Give the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, also behind the end.

        Raises:
            ValueError: it lies before the start of the file.
        """
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file_bytes}[whence]
        if begin + offset < 0:
            raise ValueError("seek before the start of the file")
        self._position = begin + offset
        return self._position
