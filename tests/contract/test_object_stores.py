"""The contract of object stores, against servers that check credentials; an alias of a scheme lists and is denied."""

from __future__ import annotations

from typing import Any

import pytest
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import TOKEN, HubServer
from servers.seaweedfs import SeaweedServer

from streamer.plugins.contract import BackendContract
from streamer.plugins.contract.failures import FailuresContract
from streamer.plugins.contract.reading_tests import ListingContract


class OnServer:
    """Objects of the bucket ``private``."""

    server: Any

    def put(self, name: str, data: bytes) -> None:
        self.server.put("private", f"contract/{name}", data)

    def delete(self, name: str) -> None:
        self.server.delete("private", f"contract/{name}")

    def set_server(self, server: Any, *secrets: str) -> None:
        self.server, self.secrets = server, secrets
        self.storage_options = server.storage_options()
        self.denied_options = server.anonymous_options()


class TestGcs(OnServer, BackendContract):
    folder_uri = "gs://private/contract"

    @pytest.fixture(autouse=True)
    def _on_a_server(self, gcs_server: GcsServer) -> None:
        self.set_server(gcs_server, gcs_server.service_account()["private_key"], "Bearer ")


class TestS3(OnServer, BackendContract):
    folder_uri = "s3://private/contract"

    @pytest.fixture(autouse=True)
    def _on_a_server(self, s3_server: SeaweedServer) -> None:
        self.set_server(s3_server, s3_server.secret_key, "X-Amz-Signature")


class OnAzure(OnServer):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, azure_server: AzuriteServer) -> None:
        self.set_server(azure_server, azure_server.key, "sig=")


class TestAzure(OnAzure, BackendContract):
    folder_uri = "az://private/contract"


class TestAbfs(OnAzure, ListingContract, FailuresContract):
    folder_uri = "abfs://private/contract"


class TestAzureSas(OnServer, BackendContract):
    folder_uri = "az://private/contract"

    @pytest.fixture(autouse=True)
    def _on_a_server(self, azure_server: AzuriteServer) -> None:
        sas = azure_server.container_sas("private")
        self.set_server(azure_server, sas, "sig=")
        self.storage_options = azure_server.sas_options(sas)


class TestHf(BackendContract):
    """Against the stand-in for the Hub: every change is a commit."""

    folder_uri = "hf://contract/model"
    keeps_versions = True
    secrets = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _on_a_server(self, hub_server: HubServer) -> None:
        self.repository = hub_server.repositories.get("model/contract/model") or hub_server.make(
            "contract/model", gated=True
        )
        self.files: dict[str, bytes] = {"README.md": b"a repository is never empty"}
        self.repository.commit(self.files)
        self.storage_options = {"endpoint": hub_server.url, "token": TOKEN}
        self.denied_options = {"endpoint": hub_server.url, "token": False}

    def put(self, name: str, data: bytes) -> None:
        self.files[name] = data
        self.repository.commit(self.files)

    def delete(self, name: str) -> None:
        del self.files[name]
        self.repository.commit(self.files)
