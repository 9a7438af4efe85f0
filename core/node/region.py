"""The memory that the processes of a meeting share: slots of one size, each with a generation.

It is a ``memfd``: it has no name, is no part of ``/dev/shm``, and goes with the last process that has it open. Its size
is sealed, so that no other process can take pages away from under a reader. If a slot is lent again during a copy,
its generation has changed afterwards, and the copy is discarded. Forked children close their copies of the descriptors
of a meeting, which would hide that the parent has ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar


class _Open(Protocol):
    def close(self) -> None:
        """Close the descriptor, without waiting for a lock."""


OpenT = TypeVar("OpenT", bound=_Open)

opening = threading.Lock()  # held from the opening of a descriptor until it is noted here; a fork waits for this lock
_open: weakref.WeakSet[_Open] = weakref.WeakSet()


def closed_in_children(opened: OpenT) -> OpenT:
    """Close an object in every child that is forked while it is open; return it. Call it while `opening` is held."""
    _open.add(opened)
    return opened


def _close_all() -> None:
    for each in list(_open):
        each.close()
    _open.clear()
    opening.release()


os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=_close_all)


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_GENERATION = struct.Struct("=Q")
_ALIGNMENT = 4096  # slots begin on a page, so that a block of the storage may be read directly into one


class Region:
    """The shared memory, in one process."""

    def __init__(self, memory: io.FileIO, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self._memory = memory
        self._begin = -(-slots * _GENERATION.size // _ALIGNMENT) * _ALIGNMENT
        self._lock = threading.Lock()
        # The last copy closes the descriptor: the number of a closed one may become that of another file.
        self._users, self._is_closing = 0, False
        try:
            if slots < 1 or slot_bytes < 1:
                raise ValueError("the shared memory has no slots")
            if fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("the shared memory is not sealed")
            if os.fstat(memory.fileno()).st_size < self._begin + slots * slot_bytes:
                raise ValueError("the shared memory is too small")
            with opening:  # a mapping has a descriptor of its own
                self._mapping = closed_in_children(mmap.mmap(memory.fileno(), self._begin + slots * slot_bytes))
        except BaseException:
            memory.close()
            raise
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Region:
        """Make shared memory; its pages are allocated as they are written."""
        with opening:
            descriptor = os.memfd_create("streamer-node", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            memory = closed_in_children(io.FileIO(descriptor, "r+"))
        try:
            memory.truncate(slots * slot_bytes + -(-slots * _GENERATION.size // _ALIGNMENT) * _ALIGNMENT)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            memory.close()
            raise
        return cls(memory, slots, slot_bytes)

    @property
    def descriptor(self) -> int:
        """The descriptor, to be sent to another process."""
        return self._memory.fileno()

    def address(self, slot: int) -> int:
        """Return the address of a slot in this process; it is valid as long as this object exists."""
        return self._address + self._begin + slot * self.slot_bytes

    def lend(self, slot: int, generation: int) -> None:
        """Announce that a slot is about to be written; processes that copy from it now discard their copies."""
        _GENERATION.pack_into(self._mapping, slot * _GENERATION.size, generation)

    def copy(self, slot: int, skipped_bytes: int, generation: int, put: Callable[[int], None]) -> bool:
        """Call ``put`` with the address of bytes of a slot; return whether the slot kept its generation meanwhile."""
        if not self._begin_use():
            return False
        try:
            put(self.address(slot) + skipped_bytes)
            with self._lock:  # the lock orders the copy before the read of the generation
                pass
            found = os.pread(self._memory.fileno(), _GENERATION.size, slot * _GENERATION.size)
            return bool(found == _GENERATION.pack(generation))
        finally:
            self._end_use()

    def close(self) -> None:
        """Close the descriptor after the last copy; the mapping goes with this object, as readers may still write."""
        with self._lock:
            self._is_closing = True
            if not self._users:
                self._memory.close()

    def _begin_use(self) -> bool:
        with self._lock:
            if not self._is_closing:
                self._users += 1
            return not self._is_closing

    def _end_use(self) -> None:
        with self._lock:
            self._users -= 1
            if self._is_closing and not self._users:
                self._memory.close()
