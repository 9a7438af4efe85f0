"""Closes the descriptors of meetings in forked children: a child's copy would hide that the parent has ended."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol, TypeVar

__all__ = ["closed_in_children", "opening"]


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
