"""Refuses to keep more tensors than the memory of this machine, or of this container, can still hold.

The system only promises memory until it is filled, and ends the process that fills too much, without a word.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.targets import Targets
from streamer.core.errors import OutOfMemoryError
from streamer.core.options.machine import free_bytes
from streamer.core.quoting import size_text
from streamer.core.tensors.frameworks import Framework

__all__ = ["KeptMemory"]

LARGEST_GROWTH = 4  # of a cast: from F16 to F64


class KeptMemory:
    """The memory of this machine that the new tensors of one load take, all at the same time.

    Args:
        wanted: The tensors of the load.
        framework: Makes them; those on a device need none of this memory.
        targets: The caller's own tensors; None where all are new.

    Attributes:
        unread_share: Gives the part of its bytes, from 1 to 0, that was not read yet, and so has no memory.
    """

    def __init__(self, wanted: Sequence[ShardTensor], framework: Framework, targets: Targets | None) -> None:
        self._wanted, self._framework, self._targets = wanted, framework, targets
        self.unread_share: Callable[[], float] = lambda: 1.0

    @cached_property
    def stored_bytes(self) -> int:
        """What the checkpoint stores of them."""
        return sum(each.entry.end - each.entry.begin for each in self._wanted)

    @cached_property
    def needed_bytes(self) -> int:
        """What they take; in a cast, more or less than is stored."""
        framework, targets = self._framework, self._targets
        new = [each for each in self._wanted if targets is None or each.entry.name in targets.fresh]
        here = [each for each in new if not framework.devices.path(each.entry.name)]
        return sum(_kept_bytes(each, framework) for each in here)

    def check_fit(self, uri: str) -> None:
        """Check that it can be had, beside what other loads of this process have yet to take; until `end`, it counts.

        Args:
            uri: The checkpoint, for the message.

        Raises:
            OutOfMemoryError: it cannot.
        """
        with _checking:
            others = list(_running)
            free_now = free_bytes()
            stored_bytes = self.stored_bytes + sum(each.stored_bytes for each in others)
            if stored_bytes * LARGEST_GROWTH > free_now:  # rarely, and there may be a million tensors
                promised = sum(int(each.needed_bytes * each.unread_share()) for each in others)
                if self.needed_bytes > free_now - promised:
                    raise _refusal(self.needed_bytes, free_now, promised, uri)
            _running.add(self)

    def end(self) -> None:
        """Count it no longer: the load has ended."""
        _running.discard(self)


_running: weakref.WeakSet[KeptMemory] = weakref.WeakSet()
_checking = threading.Lock()


def _forget_parents() -> None:
    """Forget, in a forked child, the loads of its parent, and the lock that one of its threads may hold."""
    global _checking  # noqa: PLW0603
    _checking = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_parents)


def _refusal(needed_bytes: int, free_now: int, promised: int, uri: str) -> OutOfMemoryError:
    others = f", of which loads that are running need {size_text(promised)}" if promised else ""
    return OutOfMemoryError(
        f"its tensors need {size_text(needed_bytes)} of memory, and this process can get {size_text(free_now)} more"
        f" from its machine or container{others}",
        uri=uri,
        hint="Take them one at a time with stream(), load them to a device (device=), load fewer (names=), or give"
        " the container more memory; Options(check_memory=False) tries it all the same",
        requested_bytes=needed_bytes,
    )


def _kept_bytes(wanted: ShardTensor, framework: Framework) -> int:
    return prod(framework.shape(wanted.kept)) * int(framework.final_dtype(wanted.entry).itemsize)
