"""Every other URL that fsspec can open."""

from streamer.backends.fsspec.store import FsspecStore, streamer_open_store, streamer_source_kind

__all__ = ["FsspecStore", "streamer_open_store", "streamer_source_kind"]
