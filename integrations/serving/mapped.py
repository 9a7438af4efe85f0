"""Maps weights that are in the page cache, without a copy, as an engine takes each tensor immediately.

Guarantees: these are files on a disk, and no digests are to be compared. Pages are mapped when they are used, as in
the engine's own loader: a thread that mapped them ahead (``MADV_POPULATE_READ``) made nothing faster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

import safetensors

from streamer._progress import Progress
from streamer.core.quoting import size_text
from streamer.core.request.request import ProgressOption, Request
from streamer.integrations.shard_handles import WholeCheckpoint
from streamer.plugins.registry import scheme_of

if TYPE_CHECKING:
    import torch

__all__ = ["mapped_weights"]

_log = logging.getLogger("streamer")


def mapped_weights(
    place: str | list[str], names: Callable[[str], bool], progress: ProgressOption
) -> Generator[tuple[str, torch.Tensor], None, None] | None:
    """Map the shards of a checkpoint; return None if a part of it is not in the page cache.

    Args:
        place: A folder or shards, as paths or URLs.
        names: Returns whether a tensor of this name is needed.
        progress: As for `streamer.load`.

    Raises:
        StreamerError: as for `streamer.load`, before the first tensor.
    """
    if any(scheme_of(each) != "file" for each in ([place] if isinstance(place, str) else place)):
        return None
    whole = WholeCheckpoint(Request(uri=place))
    shards = whole.warm_shards()
    if shards is None:
        return None
    wanted = {path: [name for name in held if names(name)] for path, held in shards.items()}
    total_bytes = sum(whole[name].nbytes for held in wanted.values() for name in held)
    if not total_bytes:
        return None
    return _mapped(wanted, total_bytes, whole.label, progress)


def _mapped(
    wanted: Mapping[str, list[str]], total_bytes: int, label: str, progress: ProgressOption
) -> Generator[tuple[str, torch.Tensor], None, None]:
    taken_bytes, began = 0, time.monotonic()
    with Progress(progress, total_bytes, label) as shown:
        for path, names in wanted.items():
            with safetensors.safe_open(path, "pt") as shard:
                for name in names:
                    tensor = shard.get_tensor(name)
                    size_bytes = tensor.nbytes
                    yield name, tensor
                    del tensor
                    taken_bytes += size_bytes
                    shown.update(lambda: taken_bytes)  # noqa: B023 (called before the next turn)
    count, seconds = sum(map(len, wanted.values())), time.monotonic() - began
    size = size_text(total_bytes)
    _log.info("%s: %d tensors, %s mapped from the page cache in %.2f s", label, count, size, seconds)
