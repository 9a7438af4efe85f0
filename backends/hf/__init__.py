"""Repositories of the Hugging Face Hub."""

from streamer.backends.hf.store import HfStore, streamer_open_store, streamer_source_kind

__all__ = ["HfStore", "streamer_open_store", "streamer_source_kind"]
