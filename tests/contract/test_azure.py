"""The contract of Azure Blob Storage, by account key and, over TLS, by bearer token."""

from __future__ import annotations

import pytest
from servers.azurite import AzuriteServer

from streamer.plugins.contract import BackendContract


class TestAzure(BackendContract):
    folder_uri = "az://private/contract"

    @pytest.fixture(autouse=True)
    def _on_a_server(self, azure_server: AzuriteServer) -> None:
        self.server = azure_server
        self.storage_options = azure_server.storage_options()
        self.denied_options = azure_server.anonymous_options()
        self.secrets = (azure_server.key, "sig=")

    def put(self, name: str, data: bytes) -> None:
        self.server.put("private", f"contract/{name}", data)

    def delete(self, name: str) -> None:
        self.server.delete("private", f"contract/{name}")


class TestAbfs(TestAzure):
    folder_uri = "abfs://private/contract"


class TestAzureSas(TestAzure):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, azure_server: AzuriteServer) -> None:
        self.server = azure_server
        sas = azure_server.container_sas("private")
        self.storage_options = azure_server.sas_options(sas)
        self.denied_options = azure_server.anonymous_options()
        self.secrets = (sas, "sig=")
