"""fsspec's own suites for reading, over a real S3, files on a disk and memory.

The suites write and remove their files through the inner file system.
"""

from __future__ import annotations

import secrets

import fsspec
import pytest
from fsspec.tests import abstract

from streamer.integrations.fsspec import StreamerFileSystem


class ChangedInside(StreamerFileSystem):
    """Reads as it is, and changes files with the file system inside, as the suites do between their steps."""

    def rm(self, path, **named):
        self.fs.rm(path, **named)

    def pipe(self, path, value):
        self.fs.pipe(path, value)

    def touch(self, path):
        self.fs.touch(path)

    def mkdir(self, path):
        self.fs.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.fs.makedirs(path, exist_ok=exist_ok)


class OverMemory(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return ChangedInside(target_protocol="memory")

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self):
        return f"/{secrets.token_hex(4)}"


class OverFiles(OverMemory):
    @pytest.fixture
    def fs(self):
        return ChangedInside(target_protocol="file", target_options={"auto_mkdir": True})

    @pytest.fixture
    def fs_path(self, tmp_path):
        return str(tmp_path / "tree")


class OverS3(OverMemory):
    @pytest.fixture
    def fs(self, s3_server):
        return ChangedInside(target_protocol="s3", target_options=s3_server.storage_options())

    @pytest.fixture
    def fs_path(self):
        return f"private/{secrets.token_hex(4)}"

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestGetFromMemory(abstract.AbstractGetTests, OverMemory):
    pass


class TestGetFromFiles(abstract.AbstractGetTests, OverFiles):
    pass


@pytest.mark.server
class TestGetFromS3(abstract.AbstractGetTests, OverS3):
    pass


def test_fsspec_knows_the_file_system_by_its_entry_point():
    assert fsspec.get_filesystem_class("streamer") is StreamerFileSystem
