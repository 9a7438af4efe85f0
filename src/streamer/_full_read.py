"""Reads every tensor of an open checkpoint and keeps none: what a load compares, or authenticates, is compared.

Guarantees: it raises what a load of the same checkpoint would raise. Memory stays within the limit of the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from streamer._checkpoint_headers import OpenedCheckpoint
from streamer._progress import Progress
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.sealed_catalog import seal_plan
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.request.request import ProgressOption

__all__ = ["read_in_full"]


def read_in_full(checkpoint: OpenedCheckpoint, progress: ProgressOption = None) -> Sequence[ObjectCheck]:
    """Read all tensors of a checkpoint; return what was compared, object by object.

    Raises:
        ChecksumError: the bytes mismatch a digest.
        TamperedError: a piece of an encrypted file is not as it was saved.
        StorageError: and its kinds, as a load.
    """
    catalog, settings = checkpoint.catalog, checkpoint.settings
    wanted = list(catalog.in_file_order())
    verification = checkpoint.verification(wanted)
    items = (Item(each.shard, each.entry.begin, each.entry.end) for each in wanted)
    plan = plan_reads(items, settings.coalesce_gap_bytes)
    with Progress(progress, plan.span_bytes, checkpoint.label) as shown:
        session = ReadSession(
            catalog.shards,
            plan,
            settings,
            in_item_order=verification is not None and verification.needs_order,
            on_progress=shown.update,
            on_wait=shown.note,
            digests=verification.digests if verification else None,
            name_of=lambda item: wanted[item].entry.name,
            seals=seal_plan(catalog, plan),
        )
        with closing(session):
            while finished := session.next_items():
                for item in finished:
                    memory = session.take(item)
                    if verification is not None:
                        data = None if memory is None else memoryview(memory)
                        verification.take(item, data, session.digest_pieces)
            return verification.checks(session.compares_answers) if verification else ()
