"""The depot shows the behaviour of the contract."""

import pytest
from depot_server import TOKEN, DepotServer

from streamer.plugins.contract import BackendContract


@pytest.fixture(scope="module")
def depot():
    with DepotServer() as server:
        yield server


class TestDepot(BackendContract):
    storage_options = {"token": TOKEN}
    denied_options = {"token": "another"}
    secrets = (TOKEN, "signature=")

    @pytest.fixture(autouse=True)
    def _depot(self, depot):
        self.depot = depot
        self.folder_uri = f"depot://{depot.address}/contract"

    def put(self, name, data):
        self.depot.put(f"contract/{name}", data)

    def delete(self, name):
        self.depot.delete(f"contract/{name}")
