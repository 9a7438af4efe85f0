"""Fills the cache with a checkpoint: reads what is missing, at the speed of the disk, and keeps nothing in memory."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from streamer import _native
from streamer._checkpoint_headers import OpenedCheckpoint, open_checkpoint
from streamer._progress import Progress
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import StorageError, UsageError
from streamer.core.request.request import ProgressOption, Request

LONGEST_WRITE_S = 3600.0  # for the last bytes on their way to a slow disk; at most some hundred megabytes


@dataclass(frozen=True)
class WarmReport:
    """The result of `warm`."""

    uri: str  # the URI of the checkpoint, without secrets
    shards: int  # number of its shards
    bytes: int  # bytes of its tensors
    read_bytes: int  # the part of `bytes` that was read; the other bytes were in the cache
    peer_bytes: int  # the part of `read_bytes` that peers gave; the other bytes came from the storage
    seconds: float  # duration of the call


def warm(request: Request) -> WarmReport:
    """Read what the cache lacks of a checkpoint."""
    started = time.perf_counter()
    checkpoint = open_checkpoint(request, is_raw=True, any_format=True)
    _check_cached(checkpoint)
    for shard in checkpoint.catalog.shards:
        if shard.cache is not None:
            shard.cache.may_wait = True
    wanted = list(checkpoint.catalog.in_file_order())
    missing = _missing(checkpoint, wanted)
    _read(checkpoint, missing, request.progress)
    if not _native.finish_cache_writes(LONGEST_WRITE_S):
        hint = f"The disk needed more than {LONGEST_WRITE_S:.0f} s: check its health, or name another folder"
        raise StorageError(
            "the disk of the cache is too slow to write the bytes", uri=checkpoint.label, code="ETIMEDOUT", hint=hint
        )
    _check_written(checkpoint, missing)
    sizes = _bytes_of(wanted), _bytes_of(missing), sum(checkpoint.cache.peer_bytes().values())
    return WarmReport(checkpoint.label, len(checkpoint.catalog.shards), *sizes, time.perf_counter() - started)


def _check_cached(checkpoint: OpenedCheckpoint) -> None:
    if checkpoint.format_name != "safetensors":
        what = f"cache warm takes safetensors only, and this checkpoint is of the format {checkpoint.format_name}"
        hint = "Load it once with this cache: what a load reads stays there"
        raise UsageError(what, uri=checkpoint.label, hint=hint)
    if any(each.cache is None and each.size_bytes for each in checkpoint.catalog.shards):
        reason = "; ".join(checkpoint.cache.remarks()) or "files of this machine are not cached"
        raise UsageError(f"not all of the checkpoint can be cached: {reason}", uri=checkpoint.label)


def _missing(checkpoint: OpenedCheckpoint, wanted: Sequence[ShardTensor]) -> list[ShardTensor]:
    def is_missing(each: ShardTensor) -> bool:
        cached, entry = checkpoint.catalog.shards[each.shard].cache, each.entry
        return entry.begin < entry.end and (cached is None or cached.entry.checksum(entry.begin, entry.end) is None)

    return [each for each in wanted if is_missing(each)]


def _read(checkpoint: OpenedCheckpoint, missing: Sequence[ShardTensor], progress: ProgressOption) -> None:
    items = (Item(each.shard, each.entry.begin, each.entry.end) for each in missing)
    plan = plan_reads(items, checkpoint.settings.coalesce_gap_bytes)
    names = [each.entry.name for each in missing]
    with Progress(progress, plan.span_bytes, checkpoint.label) as shown:
        session = ReadSession(
            checkpoint.catalog.shards,
            plan,
            checkpoint.settings,
            on_progress=shown.update,
            on_wait=shown.note,
            name_of=names.__getitem__,
        )
        with closing(session):
            while items_done := session.next_items():
                session.take_all(items_done)  # and free them


def _check_written(checkpoint: OpenedCheckpoint, missing: Sequence[ShardTensor]) -> None:
    for shard in checkpoint.catalog.shards:
        if shard.cache is None:
            continue
        number = shard.cache.entry.failure or (0 if shard.cache.is_written else errno.ENOSPC)
        if number or (missing and not shard.cache.entry.is_writable):
            raise StorageError(
                f"the cache cannot store more bytes: {os.strerror(number or errno.EROFS)}",
                uri=shard.uri,
                hint="Free space on its disk, or raise cache_bytes",
                code=errno.errorcode.get(number or errno.EROFS),
            )


def _bytes_of(tensors: Sequence[ShardTensor]) -> int:
    return sum(each.entry.end - each.entry.begin for each in tensors)
