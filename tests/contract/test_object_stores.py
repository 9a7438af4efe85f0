"""The contract of Google Cloud Storage, with real sign-in tokens."""

from __future__ import annotations

import pytest
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import TOKEN, HubServer
from servers.seaweedfs import SeaweedServer

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


# --- the contract of S3, against a server that verifies signatures --------------------------------------------------


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


# --- the contract of Azure Blob Storage, by account key and, over TLS, by bearer token ------------------------------


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


# --- the contract of Hugging Face repositories, against the stand-in for the Hub: every change is a commit ----------


class TestHf(BackendContract):
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
