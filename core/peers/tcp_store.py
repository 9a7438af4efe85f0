"""Finds peers by a `torch.distributed.TCPStore`, such as that of torchrun; no process group is needed.

Each peer has a numbered slot for its address with a deadline, and writes it anew as long as it lives; a slot whose time
is over is free. One thread of a process talks to a store, because calls to one whose host is frozen ignore their
time-out: it alone waits, and loads use the last list. (`list_keys` is not called: it would hold the interpreter's lock
meanwhile.) A client whose host has died never connects again, so another one is made; a new host hears of all peers.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
from datetime import timedelta
from threading import Lock, Thread
from typing import Any

from streamer.core.conditions import Event
from streamer.core.peers.discovery import joined_address

EVERY_S = 5.0
LIFE_S = 60.0  # of an address; the clocks of nodes differ by less
FIRST_LIST_S = 2.0  # longest wait of the first load for a list
ANSWER_S = 5.0  # of a store that is not frozen
END_S = 1.0  # longest wait for a thread at the end of the process
SLOTS = "streamer/peers"  # the key of their number; those of the slots are below

_lock = Lock()
# By process, as a forked child has no threads of its parent; by store; and by the port of the server that is announced.
_boards: dict[tuple[int, str, int, int | None], _Board] = {}


def addresses_in(host: str, port: int, own_port: int | None) -> list[str]:
    """Return the peers that the store at an address knows; from now on it also knows this one, if it serves."""
    with _lock:
        key = os.getpid(), host, port, own_port
        board = _boards.get(key) or _Board(host, port, own_port)
        _boards[key] = board
    board.first_list.wait(FIRST_LIST_S)
    return board.found


def leave_stores() -> None:
    """End the threads of this process; one that waits for a frozen store ends when that answers."""
    with _lock:
        for board in _boards.values():
            board.closing.set()
        for key, board in _boards.items():
            if key[0] == os.getpid():
                board.thread.join(END_S)
        _boards.clear()


class _Board:
    """What this process knows of a store."""

    def __init__(self, host: str, port: int, own_port: int | None) -> None:
        self._host, self._port, self._own_port = host, port, own_port
        self.found: list[str] = []
        self.first_list, self.closing = Event(), Event()
        self.thread = Thread(target=self._run, name="streamer-peerstore", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        store = None
        while not self.closing.is_set():
            try:
                store = store or self._client()
                self._exchange(store)
            except Exception:  # torch has several classes for a host that has died; the last list stays
                store = None
            self.first_list.set()
            self.closing.wait(EVERY_S)

    def _client(self) -> Any:
        from torch import distributed  # noqa: PLC0415 (peers of this kind alone need torch)

        store: Any = distributed
        return store.TCPStore(self._host, self._port, is_master=False, timeout=timedelta(seconds=ANSWER_S))

    def _exchange(self, store: Any) -> None:
        """Read the slots, and write the own one."""
        keys = [f"{SLOTS}/{number}" for number in range(store.add(SLOTS, 0))]
        if keys and not store.check(keys):  # one is taken, and not written yet
            keys = [each for each in keys if store.check([each])]
        slots = dict(zip(keys, (each.decode() for each in store.multi_get(keys)), strict=True)) if keys else {}
        now = time.time()
        if self._own_port is not None:
            address = self._own_address(self._own_port)
            self._write(store, slots, f"{address} {now + LIFE_S}", now)
        self.found = sorted({each.split()[0] for each in slots.values() if float(each.split()[1]) > now})

    def _write(self, store: Any, slots: dict[str, str], text: str, now: float) -> None:
        """Write into the slot of this process, or into a free one, or into a new one."""
        address = text.split(maxsplit=1)[0]
        for key, old in slots.items():
            is_usable = old.split()[0] == address or float(old.split()[1]) < now
            if is_usable and store.compare_set(key, old, text) == text.encode():
                slots[key] = text
                return
        key = f"{SLOTS}/{store.add(SLOTS, 1) - 1}"
        store.set(key, text)
        slots[key] = text

    def _own_address(self, own_port: int) -> str:
        """Return the address of this machine on the way to the store."""
        family, kind, _, _, place = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing
            ip = probe.getsockname()[0]
        return joined_address(ip, own_port)


atexit.register(leave_stores)
