"""Azure Blob Storage."""

from streamer.backends.azure.store import AzureStore, streamer_open_store, streamer_source_kind

__all__ = ["AzureStore", "streamer_open_store", "streamer_source_kind"]
