"""Whether a load shares its reads with other processes of this machine.

A load that does not share imports nothing of a meeting: that takes 25 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import ReadPlan
from streamer.core.log import OwnLogger
from streamer.core.options.options import MIB
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable
from streamer.core.store.sources import HttpSource, NfsSource

if TYPE_CHECKING:
    from streamer.core.node.share import NodeShare


def is_shareable(each: SourceObject) -> bool:
    """Whether an object is on a network and its version names its bytes; the page cache shares mounted files."""
    return each.is_settled and bool(version_of(each) and each.identity)


def version_of(each: SourceObject) -> str:
    """Return the version that names the bytes of an object on a network; empty if none does."""
    if isinstance(each.source, HttpSource):
        if each.source.version_header is None:  # the URL names one version
            return each.stored_version or "named"
        return each.version or each.source.version or ""
    return each.version if isinstance(each.source, NfsSource) else ""


LEAST_BYTES = 64 * MIB  # of a load that shares by itself: to meet takes some milliseconds
# Least shared memory worth using if the load is larger than it. In less, blocks are so few and so small that processes
# are faster alone; and what a slow process misses, it reads in small requests.
LEAST_MEMORY_BYTES = 64 * MIB
_log = OwnLogger()


def node_share(
    catalog: Catalog,
    wanted: Sequence[ShardTensor],
    plan: ReadPlan,
    settings: Settings,
    before: Callable[[], None] = lambda: None,
) -> NodeShare | None:
    """Begin to share a load, if its options allow it and something can be shared; call `before` before it reads."""
    if settings.share == "off" or not plan.span_bytes or not sys.platform.startswith("linux"):
        return None
    if settings.share is None and plan.span_bytes < LEAST_BYTES:
        return None
    if settings.node_limit_bytes // 2 < min(plan.span_bytes, LEAST_MEMORY_BYTES):
        return None
    objects = [catalog.shards[number] for number in plan.bytes_by_source()]
    if not any(is_shareable(each) and not _is_cached(each) for each in objects):
        return None
    from streamer.core.node.share import NodeShare  # noqa: PLC0415 (see the module's docstring)

    before()
    try:
        takes_parts = len(wanted) < len(catalog.tensors) or any(_is_part(each, catalog) for each in wanted)
        return NodeShare(catalog.shards, plan, settings, takes_parts=takes_parts)
    except (OSError, RuntimeError) as error:  # no descriptor or thread is left: the load reads alone
        _log.info("the load is not shared with other processes of this node: %s", printable(str(error)))
        return None


def _is_cached(each: SourceObject) -> bool:
    """Whether a cache of this machine holds the whole object, so that each process reads it from the disk."""
    return each.cache is not None and each.cache.is_trusted and each.cache.entry.held_bytes() >= each.size_bytes


def _is_part(wanted: ShardTensor, catalog: Catalog) -> bool:
    whole = catalog.tensors.get(wanted.entry.name)
    return whole is None or whole.entry != wanted.entry
