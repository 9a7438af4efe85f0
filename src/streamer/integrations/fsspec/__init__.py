"""The file system ``streamer::…`` for fsspec; its entry point in the group ``fsspec.specs`` leads here."""

from streamer.integrations.fsspec.file_system import StreamerFileSystem

__all__ = ["StreamerFileSystem"]
