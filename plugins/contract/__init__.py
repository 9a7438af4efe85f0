"""The behaviour of every storage backend and of every format as a test suite; ours run it, and yours should, too.

Subclass `BackendContract` in a test module, define the storage's URL and how a test writes an object, and run pytest.
Objects are read through the real engine, so the suite also checks the sources that the store returns:

    from streamer.plugins.contract import BackendContract

    class TestAcme(BackendContract):
        folder_uri = "acme://127.0.0.1:7000/contract"
        storage_options = {"password": "…"}

        def put(self, name: str, data: bytes) -> None:
            client.put(f"contract/{name}", data)

        def delete(self, name: str) -> None:
            client.delete(f"contract/{name}")

`FormatContract` is the suite of formats. Needs pytest. No assertion depends on timing.
"""

from __future__ import annotations

from streamer.plugins.contract.extras import ExtrasContract
from streamer.plugins.contract.failures import FailuresContract, SharingContract
from streamer.plugins.contract.format_tests import FormatContract, Sample
from streamer.plugins.contract.reading_tests import ListingContract, ReadingContract

__all__ = ["BackendContract", "FormatContract", "Sample"]


class BackendContract(ListingContract, ReadingContract, FailuresContract, SharingContract, ExtrasContract):
    """The whole suite. A subclass whose name starts with ``Test`` is collected by pytest.

    A subclass defines the attributes and methods of `streamer.plugins.contract.storage.ContractStorage`.
    """
