"""The contract of fsspec's in-memory files, which stand for every file system read through Python."""

from __future__ import annotations

from fsspec.implementations.memory import MemoryFileSystem

from streamer.plugins.contract import BackendContract


class TestMemory(BackendContract):
    folder_uri = "memory://contract"
    is_shared = False

    def put(self, name: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(f"/contract/{name}", data)

    def delete(self, name: str) -> None:
        MemoryFileSystem().rm_file(f"/contract/{name}")
