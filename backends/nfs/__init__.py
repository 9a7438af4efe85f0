"""Files of an NFS server, without a mount."""

from streamer.backends.nfs.store import NfsStore, streamer_open_store, streamer_source_kind

__all__ = ["NfsStore", "streamer_open_store", "streamer_source_kind"]
