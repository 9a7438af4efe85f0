"""fsspec's own suites for reading and writing, over a real S3, files on a disk and memory.

Left out are `AbstractCopyTests` and the suite of `mv`, as ``streamer::`` neither copies nor moves, and over S3
`AbstractPutTests`: SeaweedFS keeps folders whose files are removed, so that s3fs itself does not pass. What the suites
remove is removed by the file system inside.
"""

from __future__ import annotations

import secrets

import fsspec
import pytest
from fsspec.tests import abstract

from streamer.integrations.fsspec import StreamerFileSystem


class RemovedInside(StreamerFileSystem):
    """Reads and writes as it is, and removes with the file system inside, as the suites do between their steps."""

    def rm(self, path, **named):
        self.fs.rm(path, **named)


class OverMemory(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return RemovedInside(target_protocol="memory")

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self):
        return f"/{secrets.token_hex(4)}"


class OverFiles(OverMemory):
    @pytest.fixture
    def fs(self):
        return RemovedInside(target_protocol="file", target_options={"auto_mkdir": True})

    @pytest.fixture
    def fs_path(self, tmp_path):
        return str(tmp_path / "tree")


class OverS3(OverMemory):
    @pytest.fixture
    def fs(self, s3_server):
        return RemovedInside(target_protocol="s3", target_options=s3_server.storage_options())

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


class TestPutIntoMemory(abstract.AbstractPutTests, OverMemory):
    pass


class TestPutIntoFiles(abstract.AbstractPutTests, OverFiles):
    pass


class TestPipeIntoMemory(abstract.AbstractPipeTests, OverMemory):
    pass


class TestPipeIntoFiles(abstract.AbstractPipeTests, OverFiles):
    pass


@pytest.mark.server
class TestGetFromS3(abstract.AbstractGetTests, OverS3):
    pass


@pytest.mark.server
class TestOpenInS3(abstract.AbstractOpenTests, OverS3):
    pass


@pytest.mark.server
class TestPipeIntoS3(abstract.AbstractPipeTests, OverS3):
    pass


def test_fsspec_knows_the_file_system_by_its_entry_point():
    assert fsspec.get_filesystem_class("streamer") is StreamerFileSystem
