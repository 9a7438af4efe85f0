"""Refuses a load whose tensors need more memory than this machine, or this container, has left.

The kernel grants memory before it is filled, and kills a process that fills too much, without a message.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.errors import OutOfMemoryError
from streamer.core.options.machine import free_bytes
from streamer.core.quoting import size_text
from streamer.core.tensors.frameworks import Framework

if TYPE_CHECKING:
    from streamer.core.checkpoint.targets import Targets

LARGEST_GROWTH = 4  # the most that a cast enlarges a tensor: from F16 to F64


class KeptMemory:
    """The host memory that all new tensors of one load need together.

    Attributes:
        unread_share: Returns the share of the bytes (from 1 to 0) that was not read yet, and has no memory yet.
    """

    def __init__(self, wanted: Sequence[ShardTensor], framework: Framework, targets: Targets | None) -> None:
        self._wanted, self._framework, self._targets = wanted, framework, targets
        self.unread_share: Callable[[], float] = lambda: 1.0

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of the tensors in the checkpoint."""
        return sum(each.entry.end - each.entry.begin for each in self._wanted)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of the new tensors in host memory; a cast makes them more or less than `stored_bytes`."""
        framework, targets = self._framework, self._targets
        new = [each for each in self._wanted if targets is None or each.entry.name in targets.fresh]
        here = [each for each in new if not framework.devices.path(each.entry.name)]
        return sum(_kept_bytes(each, framework) for each in here)

    def check_fit(self, uri: str) -> None:
        """Check that the memory is free, beside what other loads of this process still need; count it until `end`."""
        with _checking:
            others = list(_running)
            free_now = free_bytes()
            stored_bytes = self.stored_bytes + sum(each.stored_bytes for each in others)
            if stored_bytes * LARGEST_GROWTH > free_now:  # rare; `needed_bytes` costs time for a million tensors
                promised = sum(int(each.needed_bytes * each.unread_share()) for each in others)
                if self.needed_bytes > free_now - promised:
                    raise _refusal(self.needed_bytes, free_now, promised, uri)
            _running.add(self)

    def end(self) -> None:
        """Stop counting this memory: the load has ended."""
        _running.discard(self)


_running: weakref.WeakSet[KeptMemory] = weakref.WeakSet()
_checking = threading.Lock()


def _forget_parents() -> None:
    """Reset the loads and the lock in a forked child: a thread of the parent may hold the lock."""
    global _checking  # noqa: PLW0603
    _checking = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_parents)


def _refusal(needed_bytes: int, free_now: int, promised: int, uri: str) -> OutOfMemoryError:
    others = f", of which running loads need {size_text(promised)}" if promised else ""
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
