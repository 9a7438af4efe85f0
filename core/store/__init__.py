"""The interface of backends: stores, sources of bytes, digests."""
