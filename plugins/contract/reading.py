"""Reading ranges: exact, in parallel, and cancelled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.engine.small_reads import read_ranges
from streamer.core.options.options import MIB
from streamer.plugins.contract.storage import JOIN_S, LARGE_BYTES, ContractStorage, pattern, read_whole, settings

__all__ = ["ReadingContract"]


class ReadingContract(ContractStorage):
    """See the module's docstring."""

    def test_ranges_at_edges_are_exact(self) -> None:
        """First, last, middle, single bytes and the whole object."""
        data = pattern(300_000)
        source_object = self._object(self._put("a.safetensors", data))
        size = len(data)
        edges = [(0, 1), (1, 2), (65_535, 65_537), (131_072, 131_072 + 65_536), (size - 1, size)]
        ranges, _ = read_ranges([source_object], [(0, *edge) for edge in edges], settings())
        assert [bytes(each) for each in ranges] == [data[begin:end] for begin, end in edges]
        assert read_whole(source_object) == data

    def test_an_empty_object_has_no_bytes(self) -> None:
        """An object of no bytes is listed, has size 0 and can be asked for."""
        uri = self._put("empty.safetensors", b"")
        store = self._open(self._uri())
        assert [info.size_bytes for info in store.find(store.root)] == [0]
        assert self._object(uri).size_bytes == 0

    def test_a_large_object_is_read_in_parallel_and_in_order(self) -> None:
        """Every byte of several blocks is in its place."""
        data = pattern(LARGE_BYTES)
        assert read_whole(self._object(self._put("large.safetensors", data))) == data

    def test_concurrency_many_threads_read_many_objects(self) -> None:
        """Stores, sources and sessions of several threads do not disturb each other."""
        contents = {f"{number}.safetensors": pattern(200_000, seed=number) for number in range(8)}
        uris = [self._put(name, data) for name, data in contents.items()]
        with ThreadPoolExecutor(len(uris)) as pool:
            loaded = list(pool.map(lambda uri: read_whole(self._object(uri)), uris * 2))
        assert loaded == [*contents.values()] * 2

    def test_cancellation_ends_every_thread(self) -> None:
        """A session closed while it reads leaves no thread behind."""
        source_object = self._object(self._put("large.safetensors", pattern(LARGE_BYTES)))
        before = set(threading.enumerate())
        items = [Item(0, begin, begin + 100_000) for begin in range(0, LARGE_BYTES - 100_000, 100_000)]
        session = ReadSession([source_object], plan_reads(items, 0), settings(memory_limit_bytes=1 * MIB))
        assert session.next_items()
        session.close()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("streamer"):
                thread.join(JOIN_S)
                assert not thread.is_alive()
