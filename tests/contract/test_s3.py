"""The contract of S3, against a server that verifies signatures."""

from __future__ import annotations

import pytest
from servers.seaweedfs import SeaweedServer

from streamer.plugins.contract import BackendContract


class TestS3(BackendContract):
    folder_uri = "s3://private/contract"

    @pytest.fixture(autouse=True)
    def _on_a_server(self, s3_server: SeaweedServer) -> None:
        self.server = s3_server
        self.storage_options = s3_server.storage_options()
        self.denied_options = s3_server.anonymous_options()
        self.secrets = (s3_server.secret_key, "X-Amz-Signature")

    def put(self, name: str, data: bytes) -> None:
        self.server.put("private", f"contract/{name}", data)

    def delete(self, name: str) -> None:
        self.server.delete("private", f"contract/{name}")
