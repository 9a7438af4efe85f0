"""Files of this machine, and of file systems that are mounted on it."""

from streamer.backends.posix.store import PosixStore, streamer_open_store, streamer_source_kind

__all__ = ["PosixStore", "streamer_open_store", "streamer_source_kind"]
