"""Ranges of files, under Run:ai's names."""

from __future__ import annotations

from streamer.compat.runai.file_streamer.file_chunks import FileChunks
from streamer.compat.runai.file_streamer.file_streamer import FileStreamer

__all__ = ["FileChunks", "FileStreamer"]
