"""Google Cloud Storage."""

from streamer.backends.gcs.store import GcsStore, streamer_open_store, streamer_source_kind

__all__ = ["GcsStore", "streamer_open_store", "streamer_source_kind"]
