"""What one member knows of one meeting: its blocks, where those that are ready lie, and what it has to send."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue
from select import select
from typing import Any

from streamer.core.node.assignment import Grant, Ready
from streamer.core.node.grid import Grid, Hull, Range, Wanted
from streamer.core.node.messages import Channel, ChannelClosedError, Message
from streamer.core.node.region import Region

__all__ = ["Meeting", "entered"]

_MERGED = ("read", "take")  # messages whose lists may be joined


class Meeting:
    """One meeting, as a member sees it. The member's lock protects all but the channel, which its thread uses.

    Attributes:
        left: By block, the number of bytes that the member wants of the block and does not have.
        ready: By block, where a ready block lies.
        grants: Blocks that are lent to the member's readers; None ends a reader.
        fetched: Blocks that this member reads itself.
    """

    def __init__(self, channel: Channel, region: Region, grid: Grid) -> None:
        self.channel, self.region, self.grid = channel, region, grid
        self.left: dict[int, int] = {}
        self.ready: dict[int, Ready] = {}
        self.grants: SimpleQueue[list[Grant] | None] = SimpleQueue()
        self.fetched: set[int] = set()
        self._unsent: deque[Message] = deque()

    def join(self, missing: Iterable[Range], wanted: Wanted) -> None:
        """Say what the member wants."""
        hulls: dict[int, Hull] = {}
        for block, (source, begin, end) in self.grid.pieces(missing):
            size = wanted.bytes_in(source, begin, end)
            if size:
                first, stop = hulls.get(block, (begin, end))
                hulls[block] = min(first, begin), max(stop, end)
                self.left[block] = self.left.get(block, 0) + size
        self.post(["join", [[block, *hull] for block, hull in hulls.items()], wanted.takes_parts])

    def post(self, message: Message) -> None:
        """Add a message to the messages that are to be sent."""
        if self._unsent and message[0] in _MERGED and self._unsent[-1][0] == message[0]:
            self._unsent[-1][1].extend(message[1])
        else:
            self._unsent.append(message)

    def unsent(self) -> list[Message]:
        """Return the messages that are to be sent, and remove them from the queue."""
        messages = list(self._unsent)
        self._unsent.clear()
        return messages

    def note(self, message: Message) -> None:
        """Process a message of the leader."""
        kind = message[0]
        if kind == "grant":
            self.grants.put([_row(each, 4) for each in message[1]])  # type: ignore[misc]  # `_row` checks the count
        elif kind == "ready":
            for row in message[1]:
                block, slot, begin, end, generation = _row(row, 5)
                if block in self.left and 0 <= slot < self.region.slots:
                    self.ready[block] = block, slot, begin, end, generation
        elif kind == "dropped":
            for block in message[1]:
                self.forget(int(block))

    def forget(self, block: int) -> None:
        """Expect nothing more of a block: the member has it, or reads it past the meeting."""
        self.left.pop(block, None)
        self.ready.pop(block, None)


def entered(connected: socket.socket, sizes: list[int], until: float) -> Meeting | None:
    """Wait for the leader's welcome; None if it does not come in time."""
    channel = Channel(connected)
    try:
        readable, _, _ = select([channel], [], [], max(0.0, until - time.monotonic()))
        if readable:
            messages, memory = channel.receive_memory()
            if memory is not None:
                (kind, block_bytes, slots), *_ = messages
                region = Region(memory, int(slots), int(block_bytes))
                if kind == "welcome":
                    return Meeting(channel, region, Grid(sizes, region.slot_bytes))
                region.close()
    except (ChannelClosedError, OSError, ValueError, TypeError):
        pass
    channel.close()
    return None


def _row(values: Any, count: int) -> tuple[int, ...]:
    row = tuple(int(each) for each in values)
    if len(row) != count:
        raise ValueError("a message is malformed")
    return row
