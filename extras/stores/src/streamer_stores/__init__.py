"""Storages for streamer that live outside of it, as anybody's plug-in: see the README of this distribution."""
