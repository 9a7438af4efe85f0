"""The contract of Google Cloud Storage, with real sign-in tokens."""

from __future__ import annotations

import pytest
from servers.gcs_emulator import GcsServer

from streamer.plugins.contract import BackendContract


class TestGcs(BackendContract):
    folder_uri = "gs://private/contract"

    @pytest.fixture(autouse=True)
    def _on_a_server(self, gcs_server: GcsServer) -> None:
        self.server = gcs_server
        self.storage_options = gcs_server.storage_options()
        self.denied_options = gcs_server.anonymous_options()
        self.secrets = (gcs_server.service_account()["private_key"], "Bearer ")

    def put(self, name: str, data: bytes) -> None:
        self.server.put("private", f"contract/{name}", data)

    def delete(self, name: str) -> None:
        self.server.delete("private", f"contract/{name}")
