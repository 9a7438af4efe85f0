"""What a backend speaks: stores, sources of bytes, digests."""
