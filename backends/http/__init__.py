"""Web servers."""

from streamer.backends.http.store import HttpStore, source_of_probe, streamer_open_store, streamer_source_kind

__all__ = ["HttpStore", "source_of_probe", "streamer_open_store", "streamer_source_kind"]
