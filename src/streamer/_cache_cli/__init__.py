"""``python -m streamer cache``: shows, fills, checks and empties the cache of a machine."""
