"""Run:ai's model streamer: its C interface on this package's engine."""

from __future__ import annotations

from streamer.compat.runai.library import library_path

__all__ = ["library_path"]
