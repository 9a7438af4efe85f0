"""Copies files into a storage: ``python -m streamer push`` and ``copy``."""
