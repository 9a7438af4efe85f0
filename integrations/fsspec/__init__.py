"""The file system ``streamer::…`` for fsspec; the entry point in the group ``fsspec.specs`` names this package."""

from streamer.integrations.fsspec.file_system import StreamerFileSystem

__all__ = ["StreamerFileSystem"]
