"""Azure Blob Storage."""

from streamer.backends.azure.store import AzureStore, is_blob_url, streamer_open_store, streamer_source_kind

__all__ = ["AzureStore", "is_blob_url", "streamer_open_store", "streamer_source_kind"]
