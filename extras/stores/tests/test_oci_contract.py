"""The contract of streamer's storages, by artifacts in a registry: every change is another manifest under the tag."""

from __future__ import annotations

import pytest
from registry_server import PASSWORD, USER, RegistryServer

from streamer.plugins.contract import BackendContract


class OnRegistry(BackendContract):
    keeps_versions = True
    login, redirects = "", False

    @pytest.fixture(autouse=True)
    def _on_a_registry(self):
        with RegistryServer(self.login, redirects=self.redirects) as self.server:
            self.folder_uri = f"oci://{self.server.host}/contract/model:v1"
            if self.login:
                self.storage_options = {"username": USER, "password": PASSWORD}
                self.denied_options = {"username": USER, "password": "another password"}
                self.secrets = (PASSWORD, "token-1-of-the-tests", "SIGNED-APART")
            self.files = {"README.md": b"an artifact is never empty"}
            self.publish()
            yield

    def publish(self):
        self.server.put_files("contract/model", "v1", self.files)

    def put(self, name, data):
        self.files[name] = data
        self.publish()

    def delete(self, name):
        self.files.pop(name, None)
        self.publish()


class TestAnonymous(OnRegistry):
    pass


class TestTokens(OnRegistry):
    login, redirects = "token", True


class TestBasic(OnRegistry):
    login = "basic"
