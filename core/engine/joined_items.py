"""A session whose items are put together from several ranges each.

It takes the place of a `ReadSession`, with the same guarantees: an item is handed out once, when all its ranges are
there. Ranges are held by the engine, within its memory limit, until they are copied to the memory of their item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from streamer import _native
from streamer.core.engine.plan import ReadPlan
from streamer.core.engine.session import ReadSession
from streamer.core.errors import LoadCancelledError

__all__ = ["JoinedItems"]


class JoinedItems:
    """See the module's docstring."""

    def __init__(self, session: ReadSession, plan: ReadPlan, item_of_row: Sequence[int]) -> None:
        self._session, self._item_of_row = session, item_of_row
        self._missing = Counter(item_of_row)
        self._first_row: dict[int, int] = {}
        self._place: list[tuple[int, int]] = []  # of each row, in its item
        sizes: Counter[int] = Counter()
        for row, (item, (_, begin, end, _, _)) in enumerate(zip(item_of_row, plan.item_rows(), strict=True)):
            self._first_row.setdefault(item, row)
            self._place.append((sizes[item], sizes[item] + end - begin))
            sizes[item] += end - begin
        self._is_joined = [self._missing[item] > 1 for item in item_of_row]
        self._sizes = sizes
        self._joined: dict[int, _native.Memory] = {}
        self._taken = 0

    def next_items(self, enough_bytes: int = 0) -> list[int]:
        """As `ReadSession.next_items`."""
        while rows := self._session.next_items(enough_bytes):
            items = [item for row in rows if (item := self._complete(row)) is not None]
            if items:
                return items
        return []

    def take_all(self, items: list[int]) -> list[_native.Memory | None]:
        """As `ReadSession.take_all`."""
        self._taken += len(items)
        joined = [self._joined.pop(item, None) for item in items]
        rows = [self._first_row[item] for item, memory in zip(items, joined, strict=True) if memory is None]
        others = iter(self._session.take_all(rows))
        return [next(others) if memory is None else memory for memory in joined]

    def close(self) -> None:
        """As `ReadSession.close`."""
        self._session.close()
        self._joined.clear()

    def stats(self) -> dict[str, int]:
        """Return the engine's counters, with the number of items that were handed out."""
        return {**self._session.stats(), "items_delivered": self._taken}

    def landed_bytes(self) -> int:
        """As `ReadSession.landed_bytes`."""
        return self._session.landed_bytes()

    def compares_answers(self, source: int) -> bool:
        """As `ReadSession.compares_answers`."""
        return self._session.compares_answers(source)

    def digest_pieces(self, item: int) -> list[tuple[int, int, int]]:
        """As `ReadSession.digest_pieces`, for an item of one range."""
        return self._session.digest_pieces(self._first_row[item])

    def _complete(self, row: int) -> int | None:
        """Note a range that has arrived; return its item if that is complete."""
        item = self._item_of_row[row]
        self._missing[item] -= 1
        if self._is_joined[row]:
            self._copy(row, item)
        return None if self._missing[item] else item

    def _copy(self, row: int, item: int) -> None:
        (memory,) = self._session.take_all([row])
        if memory is None:  # no range of several is empty
            raise LoadCancelledError("the stream was closed while it was read")
        if item not in self._joined:
            self._joined[item] = _native.allocate(self._sizes[item])
        begin, end = self._place[row]
        target = np.frombuffer(memoryview(self._joined[item]), np.uint8)  # it copies without the interpreter's lock
        target[begin:end] = np.frombuffer(memoryview(memory), np.uint8)
