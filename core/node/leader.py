"""The process that keeps the book of a meeting: a daemon thread that only exchanges messages.

It ends when the last member has left. A member whose process dies closes its socket, so its blocks are free at
once. A member that is silent for a second keeps its slots, and others read its blocks.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from streamer.core.node.assignment import Book, Letter
from streamer.core.node.grid import Grid, Hull
from streamer.core.node.messages import Channel, ChannelClosedError, Message, Pulse, process_of
from streamer.core.node.region import Region, closed_in_children, opening

FIRST_MEMBER_S = 5.0  # how long the first member is waited for; the leader's own process joins at once
ARRIVAL_S = 1.0  # how long blocks are kept for ranks that were launched together; perhaps only one of them loads


@dataclass(frozen=True)
class Terms:
    """What the leader decides for all."""

    block_bytes: int  # size of a block, and of a slot
    slots: int  # number of slots
    batch_blocks: int  # maximum number of blocks that a reader is lent at a time
    expected: int  # number of processes that were launched together on this node; 1 if that is not known


class Leader:
    """Serves one meeting."""

    def __init__(self, listener: socket.socket, sizes: list[int], terms: Terms) -> None:
        self._listener, self._terms = listener, terms
        grid = self._grid = Grid(sizes, terms.block_bytes)
        self._book = Book(terms.slots, terms.batch_blocks, terms.expected, lambda block: grid.place(block)[1:])
        self._region = Region.create(terms.slots, terms.block_bytes)
        with opening:
            self._selector = closed_in_children(selectors.DefaultSelector())
        self._channels: dict[int, Channel] = {}
        self._heard: dict[int, float] = {}
        self._processes: dict[int | None, int] = {}  # the number of each member's process
        self._accepted = self._joined = 0
        self._began = time.monotonic()
        self._pulse = Pulse(self._began)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        Thread(target=self._run, name="streamer-lead", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._is_needed():
                self._deliver(self._book.await_others(self._awaits_others()))
                now = time.monotonic()
                is_due = self._pulse.is_due(now)
                for key, events in self._selector.select(self._pulse.wait_s(now)):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._attend(key.data, events)
                if is_due:  # only after all messages that arrived: this process may have been stopped itself
                    self._note_silence()
        finally:
            for channel in self._channels.values():
                channel.close()
            self._listener.close()
            self._selector.close()
            self._region.close()

    def _is_needed(self) -> bool:
        return bool(self._channels) or self._awaits_others()

    def _awaits_others(self) -> bool:
        limit = ARRIVAL_S if self._joined else FIRST_MEMBER_S
        return self._joined < max(1, self._terms.expected) and time.monotonic() - self._began < limit

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            try:
                with opening:
                    connected = closed_in_children(self._listener.accept()[0])
            except OSError as error:
                if isinstance(error, (BlockingIOError, ConnectionError)):
                    raise
                self._selector.unregister(self._listener)  # no descriptor is left: others meet without this process
                self._listener.close()
                return
            process = process_of(connected)
            if process is None:
                connected.close()
                return
            member, channel = self._accepted, Channel(connected)
            self._accepted += 1
            self._channels[member], self._heard[member] = channel, time.monotonic()
            self._processes[member] = process
            self._selector.register(channel, selectors.EVENT_READ, member)
            terms = self._terms
            with suppress(ChannelClosedError):  # the next event of the socket says so, too
                channel.send(["welcome", terms.block_bytes, terms.slots], [self._region.descriptor])

    def _attend(self, member: int, events: int) -> None:
        channel = self._channels.get(member)
        if channel is None:  # an earlier event of this round has removed the member
            return
        try:
            if events & selectors.EVENT_WRITE:
                channel.flush()
                self._watch(member)
            messages = channel.receive() if events & selectors.EVENT_READ else []
            self._heard[member] = time.monotonic()
            self._book.heard(member)
            for message in messages:
                self._deliver(self._answers(member, message))
        except ChannelClosedError:
            self._lose(member)
        except (TypeError, ValueError, LookupError):  # an invalid message; the member may still write to its slots
            self._deliver(self._book.silent(member))
            self._close(member)

    def _answers(self, member: int, message: Message) -> list[Letter]:
        kind, *values = message
        if kind == "join":
            self._joined += 1
            return self._book.join(member, _wants(values[0], self._grid), takes_parts=bool(values[1]))
        if kind == "ask":
            return self._book.ask(member)
        if kind == "alive":
            self._send(member, ["alive"])
            return []
        if kind == "need":
            block = int(values[0])
            letters = self._book.need(member, block)
            self._send(member, ["reader", block, self._processes.get(self._book.reader_of(block), 0)])
            return letters
        if kind == "take":
            return self._book.take(member, [int(each) for each in values[0]])
        act = {"read": self._book.read, "fail": self._book.fail}[kind]
        return act(member, [(int(block), int(slot)) for block, slot in values[0]])

    def _deliver(self, letters: list[Letter]) -> None:
        for member, kind, content in letters:
            if kind == "grant":
                for grant in content:
                    slot = grant[1]  # type: ignore[index]  # a Grant
                    self._region.lend(slot, self._book.generations[slot])
            self._send(member, [kind, content])

    def _send(self, member: int, message: Message) -> None:
        channel = self._channels.get(member)
        if channel is not None:
            with suppress(ChannelClosedError):  # the next event of the socket says so, too
                channel.send(message)
                self._watch(member)

    def _watch(self, member: int) -> None:
        channel = self._channels[member]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.has_unsent else 0)
        self._selector.modify(channel, events, member)

    def _lose(self, member: int) -> None:
        """Remove a member that has closed its socket, and so writes no more."""
        self._close(member)
        self._deliver(self._book.leave(member))

    def _close(self, member: int) -> None:
        channel = self._channels.pop(member)
        self._selector.unregister(channel)
        channel.close()
        del self._heard[member], self._processes[member]

    def _note_silence(self) -> None:
        now = time.monotonic()
        for member in self._book.members_who_read():
            if now - self._heard[member] > self._pulse.silence_s:
                self._deliver(self._book.silent(member))


def _wants(listed: Any, grid: Grid) -> dict[int, Hull]:
    """Check what a member wants of each block."""
    wants = {int(block): (int(begin), int(end)) for block, begin, end in listed}
    for block, (begin, end) in wants.items():
        if not 0 <= block < len(grid):
            raise ValueError("no such block")
        _, first, stop = grid.place(block)
        if not first <= begin < end <= stop:
            raise ValueError("a range outside of its block")
    return wants
