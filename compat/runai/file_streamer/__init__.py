"""Ranges of files, under Run:ai's names."""

from __future__ import annotations

from streamer.compat.runai.file_streamer.file_streamer import FileStreamer
from streamer.compat.runai.file_streamer.requests_iterator import FileChunks

__all__ = ["FileChunks", "FileStreamer"]
