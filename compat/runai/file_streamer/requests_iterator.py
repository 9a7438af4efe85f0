"""The module of `FileChunks` in Run:ai's package."""

from __future__ import annotations

from streamer.compat.runai.file_streamer.file_chunks import FileChunks

__all__ = ["FileChunks"]
