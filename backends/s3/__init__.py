"""S3, and servers that speak its protocol."""

from streamer.backends.s3.store import S3Store, streamer_open_store, streamer_source_kind

__all__ = ["S3Store", "streamer_open_store", "streamer_source_kind"]
