"""Refuses tensors that no memory of this machine can hold, before they are read: the kernel would kill the process.

The system only promises the engine's memory until it is filled, so allocating too much does not fail. Memory of the
caller or a device is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from streamer import _native
from streamer.core.engine.plan import ReadPlan
from streamer.core.errors import OutOfMemoryError
from streamer.core.options.machine import memory_bytes, swap_bytes
from streamer.core.quoting import quoted

__all__ = ["check_memory"]


class _Named(Protocol):
    @property
    def uri(self) -> str:
        """The object, without secrets."""


def check_memory(plan: ReadPlan, objects: Sequence[_Named], name_of: Callable[[int], str] | None) -> None:
    """Check that each item fits in the memory this process may use, swap included."""
    usable = memory_bytes() + swap_bytes()
    if name_of is None or plan.item_bytes <= usable:  # the usual case: checking each of a million items takes time
        return
    for item, (source, begin, end, target, device) in enumerate(plan.item_rows()):
        if end - begin > usable and not target and device == _native.HOST:
            raise OutOfMemoryError(
                f"tensor {quoted(name_of(item))} has {end - begin} bytes, but this process may use only {usable}"
                " bytes of memory",
                uri=objects[source].uri,
                hint="Load it on a machine with more, leave it out (names=), or read rows of it (open().get_slice)",
                requested_bytes=end - begin,
            )
