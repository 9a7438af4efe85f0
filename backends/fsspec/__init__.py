"""Every other URL that fsspec knows."""

from streamer.backends.fsspec.store import FsspecStore, streamer_open_store, streamer_source_kind

__all__ = ["FsspecStore", "streamer_open_store", "streamer_source_kind"]
