"""fsspec's own suites for reading, over a real S3, files on a disk and memory. What they write goes to the one inside.

Left out are the suites that write (`AbstractCopyTests`, `AbstractPutTests`, `AbstractPipeTests`, and that of `mv`), as
``streamer::`` only reads; and over S3 the one test of `AbstractOpenTests`, which writes with ``"xb"``: s3fs raises for
a file that exists when it is closed, and not when it is opened, so that s3fs itself does not pass.
"""

from __future__ import annotations

import secrets

import fsspec
import pytest
from fsspec.tests import abstract

from streamer.integrations.fsspec import StreamerFileSystem


class WritableInside(StreamerFileSystem):
    """Reads as it is, and writes with the file system inside, as the suites prepare what they read."""

    def touch(self, path, **named):
        self.fs.touch(path, **named)

    def makedirs(self, path, exist_ok=False):
        self.fs.makedirs(path, exist_ok=exist_ok)

    mkdir = makedirs

    def rm(self, path, **named):
        self.fs.rm(path, **named)

    def pipe(self, path, value=None, **named):
        self.fs.pipe(path, value, **named)

    def _open(self, path, mode="rb", **named):
        return self.fs.open(path, mode) if mode != "rb" else super()._open(path, mode, **named)


class OverMemory(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return WritableInside(target_protocol="memory")

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self):
        return f"/{secrets.token_hex(4)}"


class OverFiles(OverMemory):
    @pytest.fixture
    def fs(self):
        return WritableInside(target_protocol="file", target_options={"auto_mkdir": True})

    @pytest.fixture
    def fs_path(self, tmp_path):
        return str(tmp_path / "tree")


class OverS3(OverMemory):
    @pytest.fixture
    def fs(self, s3_server):
        return WritableInside(target_protocol="s3", target_options=s3_server.storage_options())

    @pytest.fixture
    def fs_path(self):
        return f"private/{secrets.token_hex(4)}"

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestGetFromMemory(abstract.AbstractGetTests, OverMemory):
    pass


class TestOpenInMemory(abstract.AbstractOpenTests, OverMemory):
    pass


class TestGetFromFiles(abstract.AbstractGetTests, OverFiles):
    pass


class TestOpenFiles(abstract.AbstractOpenTests, OverFiles):
    pass


@pytest.mark.server
class TestGetFromS3(abstract.AbstractGetTests, OverS3):
    pass


def test_fsspec_knows_the_file_system_by_its_entry_point():
    assert fsspec.get_filesystem_class("streamer") is StreamerFileSystem
