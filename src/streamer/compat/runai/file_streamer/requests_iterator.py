"""Where Run:ai's package has `FileChunks`."""

from __future__ import annotations

from streamer.compat.runai.file_streamer.file_chunks import FileChunks

__all__ = ["FileChunks"]
