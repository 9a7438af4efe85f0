"""The contract of files: mounted ones, those of an NFS server, and fsspec's, read through Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from servers.ganesha import NfsServer

from streamer.plugins.contract import BackendContract
from streamer.plugins.contract.failures import FailuresContract
from streamer.plugins.contract.reading_tests import ListingContract


class TestMemory(BackendContract):
    folder_uri = "memory://contract"
    is_shared = False

    def put(self, name: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(f"/contract/{name}", data)

    def delete(self, name: str) -> None:
        MemoryFileSystem().rm_file(f"/contract/{name}")


class InFolder:
    scheme = ""

    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path) -> None:
        self.folder_uri = f"{self.scheme}{tmp_path}"
        self.folder = tmp_path

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("being written").write_bytes(data)
        path.with_name("being written").rename(path)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink()


class TestPath(InFolder, BackendContract):
    pass


class TestFileUrl(InFolder, ListingContract, FailuresContract):
    scheme = "file://"


class TestRewrittenInPlace(InFolder, BackendContract):
    """The same, with a file that is overwritten in place and not replaced by a rename."""

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # two writes within a tick of the clock


class TestNfs(BackendContract):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, nfs_server: NfsServer) -> None:
        self.server = nfs_server
        self.folder_uri = "nfs://127.0.0.1/export/contract"
        self.storage_options = {"version": 4, "nfsport": nfs_server.port}
        self.denied_options = {**self.storage_options, "uid": 12345, "gid": 12345}

    def put(self, name: str, data: bytes) -> None:
        self.server.put(f"contract/{name}", data, mode=0o600)

    def delete(self, name: str) -> None:
        (self.server.export / "contract" / name).unlink()
