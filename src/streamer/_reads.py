"""How the bytes of one load come to this process: read by it, shared with its node, or exchanged in a group.

It is chosen once, when the load begins, so a `Stream` sees one case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from streamer._checkpoint_headers import OpenedCheckpoint
from streamer._progress import Progress
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.destinations import Destinations
from streamer.core.collector import collector_paused
from streamer.core.engine.byte_reads import JoinedItems
from streamer.core.engine.plan import ReadPlan, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import OutOfMemoryError
from streamer.core.options.machine import local_ranks
from streamer.core.options.settings import Settings
from streamer.core.tensors.frameworks import Framework

if TYPE_CHECKING:
    from streamer.core.checkpoint.targets import Targets
    from streamer.core.group.session import GroupSession
    from streamer.core.node.share import NodeShare
    from streamer.core.node.stripes_ahead import StripesAhead
    from streamer.core.verification.strategy import Verification

LEAST_RANKS = 2  # of one node, to share what they read

Order = Literal["completion", "file"]
Session: TypeAlias = "ReadSession | GroupSession | JoinedItems"


class Reads(Protocol):
    """What is read for one load.

    Attributes:
        wanted: The tensors that are handed out.
        verification: What compares them, or None.
        destinations: Where their bytes go.
        plan: What is read.
        read_bytes: Bytes that this process reads from the storage or its cache.
        copied_bytes: Bytes that other processes of the node read for this one.
    """

    wanted: list[ShardTensor]
    verification: Verification | None
    destinations: Destinations
    plan: ReadPlan

    @property
    def read_bytes(self) -> int: ...
    @property
    def copied_bytes(self) -> int: ...
    def started(self, order: Order, progress: Progress) -> Session:
        """Begin to read, in the background."""

    def added_to(self, stats: Mapping[str, int]) -> Mapping[str, int]:
        """Add counters of reads that the session does not know."""

    def device_paths(self) -> set[str]:
        """Return how the tensors get to their devices; see `Devices.path`."""


def may_be_shared(settings: Settings) -> bool:
    """Whether ranks of this node may share the reads of a load with such settings."""
    return settings.share == "node" or (settings.share is None and local_ranks() >= LEAST_RANKS)


def reads_of(
    checkpoint: OpenedCheckpoint,
    wanted: list[ShardTensor],
    framework: Framework,
    verification: Verification | None,
    targets: Targets | None,
) -> Reads:
    """Choose how a load reads; the tensors that are wanted may become other ones (`Reads.wanted`)."""
    if checkpoint.member is not None:
        return _GroupReads(checkpoint, wanted, framework, targets, is_verified=verification is not None)
    return _OwnReads(checkpoint, wanted, framework, verification, targets)


class _OwnReads:
    """This process reads all that it wants, or shares the reads of its node."""

    def __init__(
        self,
        checkpoint: OpenedCheckpoint,
        wanted: list[ShardTensor],
        framework: Framework,
        verification: Verification | None,
        targets: Targets | None,
    ) -> None:
        settings, self._checkpoint, self.verification = checkpoint.settings, checkpoint, verification
        # A digest covers a whole tensor, and an encrypted file is divided into pieces of its own.
        is_whole = verification is not None or checkpoint.is_sealed
        gap_bytes = None if is_whole else settings.coalesce_gap_bytes
        # A cache keeps ranges, and would find no item whose bytes lie apart.
        takes_runs = not is_whole and all(each.cache is None for each in checkpoint.catalog.shards)
        with collector_paused():
            self.destinations = Destinations(wanted, framework, targets, gap_bytes, takes_runs=takes_runs)
            self.wanted = self.destinations.wanted
            rows, runs = self.destinations.items(), self.destinations.runs()
            self.plan = plan_reads(rows, settings.coalesce_gap_bytes, runs)
        self._share = self._node_share()
        self.plan = self._share.plan if self._share else self.plan

    @property
    def read_bytes(self) -> int:
        return self._share.read_bytes if self._share else self.plan.span_bytes

    @property
    def copied_bytes(self) -> int:
        return self._share.copied_bytes if self._share else 0

    def started(self, order: Order, progress: Progress) -> Session:
        try:
            session = self._session(order, progress, self._share)
        except BaseException as error:
            if self._share is None:
                raise
            self._share.close()
            self._share = None
            if not isinstance(error, OutOfMemoryError):
                raise
            session = self._session(order, progress, None)  # reading alone takes fewer threads, and less memory
        rows = self.destinations.item_of_row
        return session if rows is None else JoinedItems(session, self.plan, rows)

    def added_to(self, stats: Mapping[str, int]) -> Mapping[str, int]:
        return self._share.added_to(stats) if self._share else stats

    def device_paths(self) -> set[str]:
        return self.destinations.device_paths()

    def _session(self, order: Order, progress: Progress, share: NodeShare | None) -> ReadSession:
        verification, catalog = self.verification, self._checkpoint.catalog
        ahead = self._read_ahead()
        session = ReadSession(
            share.objects if share else catalog.shards,
            self.plan,
            share.settings if share else self._checkpoint.settings,
            in_item_order=order == "file" or (verification is not None and verification.needs_order),
            keep_alive=self.destinations.in_place,
            lock=self.destinations.share_lock(),
            on_progress=progress.update if progress.is_shown else None,
            on_wait=progress.note,
            digests=verification.digests if verification else None,
            name_of=self._name_of(),
            device_tensors=self.destinations.device_tensors,
            seals=self._checkpoint.seal_plan(self.plan),
            on_end=lambda: [each.close() for each in (share, ahead) if each],
            facts=share.facts if share else dict,
        )
        if ahead:
            ahead.begin(session)
        return session

    def _node_share(self) -> NodeShare | None:
        """Share the reads with other processes of the node, if there are any."""
        checkpoint = self._checkpoint
        if not may_be_shared(checkpoint.settings):
            return None
        from streamer.core.node.should_share import node_share  # noqa: PLC0415 (most loads are alone)

        def distrust() -> None:
            if self.verification is not None:  # the processes of a node give each other blocks, not tensors
                checkpoint.cache.leave_peers()

        return node_share(checkpoint.catalog, self.wanted, self.plan, checkpoint.settings, distrust)

    def _read_ahead(self) -> StripesAhead | None:
        """Read mounted files ahead, divided among the ranks of this node."""
        checkpoint = self._checkpoint
        if local_ranks() < LEAST_RANKS:
            return None
        from streamer.core.node.stripes_ahead import stripes_ahead  # noqa: PLC0415 (as above)

        return stripes_ahead(checkpoint.catalog.shards, self.plan, checkpoint.settings)

    def _name_of(self) -> Callable[[int], str]:
        """Return a function that names a row; it refers to no stream, so that garbage collection closes one."""
        wanted, rows = self.wanted, self.destinations.item_of_row
        return lambda row: wanted[row if rows is None else rows[row]].entry.name


class _GroupReads:
    """The ranks of a group read each byte once, and send it to those that want it."""

    copied_bytes = 0

    def __init__(
        self,
        checkpoint: OpenedCheckpoint,
        wanted: list[ShardTensor],
        framework: Framework,
        targets: Targets | None,
        *,
        is_verified: bool,
    ) -> None:
        from streamer.core.group.start import SharedReads  # noqa: PLC0415 (takes 15 ms, and few loads have a group)

        assert checkpoint.member is not None
        digests = checkpoint.tensor_digests() if is_verified else ()
        if is_verified:  # ranks give each other pieces, not tensors
            checkpoint.cache.leave_peers()
        catalog, settings, distrust = checkpoint.catalog, checkpoint.settings, checkpoint.cache.distrust
        self._shared = SharedReads(checkpoint.member, catalog, wanted, settings, digests=digests, distrust=distrust)
        self.verification: Verification | None = self._shared.verification
        with collector_paused():
            self.destinations = Destinations(self._shared.kept, framework, targets)  # the group divides its tensors
            self.wanted = self.destinations.wanted
            self.plan = self._shared.counted(plan_reads(self.destinations.items(), settings.coalesce_gap_bytes))

    @property
    def read_bytes(self) -> int:
        return self.plan.span_bytes

    def started(self, order: Order, progress: Progress) -> Session:
        del order  # all ranks have the order of the file
        return self._shared.started(self.plan, self.destinations, progress)

    def added_to(self, stats: Mapping[str, int]) -> Mapping[str, int]:
        return stats

    def device_paths(self) -> set[str]:
        """The group fills tensors on devices itself."""
        return {"torch" if each == "ring" else each for each in self.destinations.device_paths()}
