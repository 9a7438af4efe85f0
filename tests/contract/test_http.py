"""The contract of web servers: nginx, plain and over TLS, and one without byte ranges."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote

import pytest
from servers.nginx import NginxServer

from streamer.core.store.sources import ObjectInfo
from streamer.plugins.contract import BackendContract
from streamer.plugins.contract.failures import FailuresContract, SharingContract
from streamer.plugins.contract.reading_tests import ListingContract


class OnNginx:
    @pytest.fixture(autouse=True)
    def _on_a_server(self, http_server: NginxServer) -> None:
        self.server = http_server
        self.folder_uri = f"{http_server.http_url}/private/contract"
        self.storage_options = {"auth": (http_server.user, http_server.password)}
        self.denied_options = {}
        self.secrets = (http_server.password, http_server.basic)

    def uri(self, path: str) -> str:
        return f"{self.folder_uri}/{quote(path)}"

    def name(self, info: ObjectInfo) -> str:
        return unquote(super().name(info))

    def put(self, name: str, data: bytes) -> None:
        path = self.server.root / "contract" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name("being written")
        draft.write_bytes(data)
        # nginx makes its ETag of size and seconds, so it cannot tell two versions of one second apart.
        self.puts = getattr(self, "puts", 0) + 1
        os.utime(draft, (draft.stat().st_atime, draft.stat().st_mtime + 2 * self.puts))
        draft.rename(path)

    def delete(self, name: str) -> None:
        (self.server.root / "contract" / name).unlink()


class TestHttp(OnNginx, BackendContract):
    pass


class TestHttps(OnNginx, ListingContract, FailuresContract, SharingContract):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, https_server: NginxServer) -> None:
        self.server = https_server
        self.folder_uri = f"{https_server.https_url}/bearer/contract"
        self.storage_options = {
            "headers": {"Authorization": f"Bearer {https_server.token}"},
            "verify": https_server.ca_file,
        }
        self.denied_options = {"verify": https_server.ca_file}
        self.secrets = (https_server.token,)


class TestHttpWithoutRanges(OnNginx, BackendContract):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, http_server: NginxServer) -> None:
        self.server = http_server
        self.folder_uri = f"{http_server.http_url}/whole/contract"
        self.storage_options = {}
        self.denied_options = None
        self.secrets = ()


class TestHttpThatTakesPut(OnNginx, BackendContract):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, http_server: NginxServer) -> None:
        self.server = http_server
        self.folder_uri = f"{http_server.http_url}/dav/contract"
        self.storage_options = {}
        self.denied_options = None
        self.secrets = ()
