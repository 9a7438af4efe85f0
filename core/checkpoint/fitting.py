"""Refuses to keep more tensors than the memory of this machine, or of this container, can still hold.

The system only promises memory until it is filled, and ends the process that fills too much, without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.targets import Targets
from streamer.core.errors import OutOfMemoryError
from streamer.core.options.machine import free_bytes
from streamer.core.quoting import size_text
from streamer.core.tensors.frameworks import Framework

__all__ = ["check_fit"]

LARGEST_GROWTH = 4  # of a cast: from F16 to F64


def check_fit(wanted: Sequence[ShardTensor], framework: Framework, targets: Targets | None, uri: str) -> None:
    """Check that the new tensors of a load fit into the memory of this machine, all at the same time.

    Args:
        wanted: The tensors of the load.
        framework: Makes them; those on a device need none of this memory.
        targets: The caller's own tensors; None where all are new.
        uri: The checkpoint, for the message.

    Raises:
        OutOfMemoryError: they do not.
    """
    stored_bytes = sum(each.entry.end - each.entry.begin for each in wanted)
    free_now = free_bytes()
    if stored_bytes * LARGEST_GROWTH <= free_now:  # nearly always, and there may be a million tensors
        return
    new = [each for each in wanted if targets is None or each.entry.name in targets.fresh]
    here = [each for each in new if not framework.devices.path(each.entry.name)]
    needed_bytes = sum(_kept_bytes(each, framework, targets) for each in here)
    if needed_bytes > free_now:
        raise OutOfMemoryError(
            f"its tensors need {size_text(needed_bytes)} of memory, and this process can get {size_text(free_now)} more"
            " from its machine or container",
            uri=uri,
            hint="Take them one at a time with stream(), load them to a device (device=), load fewer (names=), or give"
            " the container more memory; Options(check_memory=False) tries it all the same",
            requested_bytes=needed_bytes,
        )


def _kept_bytes(wanted: ShardTensor, framework: Framework, targets: Targets | None) -> int:
    entry = wanted.entry
    if targets is not None and entry.name in targets.cuts:  # a part of what is read
        return int(targets.fresh[entry.name].nbytes)
    return prod(framework.shape(entry)) * int(framework.final_dtype(entry).itemsize)
