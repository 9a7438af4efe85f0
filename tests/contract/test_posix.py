"""The contract of mounted files, as paths and as ``file://`` URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamer.plugins.contract import BackendContract


class TestPath(BackendContract):
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path) -> None:
        self.folder_uri = str(tmp_path)
        self.folder = tmp_path

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("being written").write_bytes(data)
        path.with_name("being written").rename(path)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink()


class TestFileUrl(TestPath):
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path) -> None:
        self.folder_uri = f"file://{tmp_path}"
        self.folder = tmp_path


class TestRewrittenInPlace(TestPath):
    """The same where an object is overwritten in place instead of renamed over."""

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # two writes within a tick of the clock
