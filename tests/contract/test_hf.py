"""The contract of Hugging Face repositories, against the stand-in for the Hub: every change is a commit."""

from __future__ import annotations

import pytest
from servers.hub import TOKEN, HubServer

from streamer.plugins.contract import BackendContract


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
