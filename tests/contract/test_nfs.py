"""The contract of NFS without a mount, against nfs-ganesha."""

from __future__ import annotations

import pytest
from servers.ganesha import NfsServer

from streamer.plugins.contract import BackendContract


class TestNfs(BackendContract):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, nfs_server: NfsServer) -> None:
        self.server = nfs_server
        self.folder_uri = "nfs://127.0.0.1/export/contract"
        self.storage_options = {"version": 4, "nfsport": nfs_server.port}
        self.denied_options = {**self.storage_options, "uid": 12345, "gid": 12345}

    def put(self, name: str, data: bytes) -> None:
        self.server.put(f"contract/{name}", data, mode=0o600)

    def delete(self, name: str) -> None:
        (self.server.export / "contract" / name).unlink()
