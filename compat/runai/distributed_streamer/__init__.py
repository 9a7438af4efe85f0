"""Ranges of files for several ranks, under Run:ai's names."""

from __future__ import annotations

from streamer.compat.runai.distributed_streamer.distributed_streamer import DistributedStreamer

__all__ = ["DistributedStreamer"]
