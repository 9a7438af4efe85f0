"""The behaviour every storage backend must show; ours run it, and so should yours.

Subclass `BackendContract` in a test module, say where your storage is and how a test puts an object there, and run
pytest. Objects are read through the real engine, so the suite also proves the sources the store gives:

    from streamer.plugins.contract import BackendContract

    class TestAcme(BackendContract):
        folder_uri = "acme://127.0.0.1:7000/contract"
        storage_options = {"password": "…"}

        def put(self, name: str, data: bytes) -> None:
            client.put(f"contract/{name}", data)

        def delete(self, name: str) -> None:
            client.delete(f"contract/{name}")

Needs pytest. Nothing here is a timed assertion, but every wait ends.
"""

from __future__ import annotations

from streamer.plugins.contract.extras import ExtrasContract
from streamer.plugins.contract.failures import FailuresContract
from streamer.plugins.contract.listing import ListingContract
from streamer.plugins.contract.reading import ReadingContract
from streamer.plugins.contract.sharing import SharingContract

__all__ = ["BackendContract"]


class BackendContract(ListingContract, ReadingContract, FailuresContract, SharingContract, ExtrasContract):
    """The whole suite. A subclass whose name starts with ``Test`` is collected by pytest.

    A subclass says what `streamer.plugins.contract.storage.ContractStorage` describes.
    """
