"""Starts the reads of a group, once all ranks have said what they want."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.destinations import Destinations
from streamer.core.engine.plan import ReadPlan
from streamer.core.engine.session import ReadSession
from streamer.core.format.manifest import TensorDigest
from streamer.core.group.agreement import agree_on_parts
from streamer.core.group.assembly import TensorAssembly, size_of
from streamer.core.group.member import Member
from streamer.core.group.session import GroupSession
from streamer.core.group.verification import GroupVerification
from streamer.core.group.windows import group_reads
from streamer.core.options.settings import Settings

WINDOWS_HELD = 6  # two windows are sent, two are received, and the collective and the copies need two more


class _Progress(Protocol):
    def update(self, count_done: Callable[[], int], /) -> None: ...
    def note(self, text: str, /) -> None: ...


class SharedReads:
    """What one rank reads for its group, and which bytes of all reads the rank keeps.

    Attributes:
        kept: What is handed out: each part as a tensor of its own, which needs no further cutting.
        verification: Compares the tensors with the digests, or None.
    """

    def __init__(
        self,
        member: Member,
        catalog: Catalog,
        wanted: Sequence[ShardTensor],
        settings: Settings,
        *,
        digests: Sequence[Mapping[str, TensorDigest]] = (),
        distrust: Callable[[int], None] = lambda _: None,
    ) -> None:
        member.deadline = settings.deadline
        tensors, parts, window_bytes = agree_on_parts(member, catalog, wanted, settings)
        self._member, self._catalog = member, catalog
        self._reads = group_reads(member.rank, parts, tensors, window_bytes)
        numbers = {each.entry.name: number for number, each in enumerate(tensors)}
        self._kept_numbers = [numbers[each.entry.name] for each in wanted]
        held_bytes = WINDOWS_HELD * max((each.shared_bytes for each in self._reads.windows), default=0)
        limit_bytes = settings.memory_limit_bytes
        self._settings = replace(settings, memory_limit_bytes=max(limit_bytes - held_bytes, limit_bytes // 4, 1))
        self.kept = [
            each._replace(entry=each.kept._replace(begin=0, end=size_of(parts[member.rank][number])), cut=None)
            for each, number in zip(wanted, self._kept_numbers, strict=True)
        ]
        self.verification = GroupVerification(catalog, tensors, wanted, digests, distrust) if digests else None

    def counted(self, plan: ReadPlan) -> ReadPlan:
        """Return a plan of the tensors that counts only the bytes that this rank reads."""
        return plan._replace(span_bytes=self._reads.plan.span_bytes)

    def started(self, plan: ReadPlan, destinations: Destinations, progress: _Progress) -> GroupSession:
        """Begin to read."""
        names = self._reads.names
        targets = {
            number: destinations.in_place[each.entry.name]
            for number, each in enumerate(self.kept)
            if each.entry.name in destinations.in_place
        }
        parts = self._reads.parts[self._member.rank]
        destination = TensorAssembly(
            [parts[number] for number in self._kept_numbers], plan, destinations.device_tensors, targets
        )

        def session(beat: Callable[[Callable[[], int]], None]) -> ReadSession:
            def on_progress(landed_bytes: Callable[[], int]) -> None:
                progress.update(landed_bytes)
                beat(landed_bytes)

            return ReadSession(
                self._catalog.shards,
                self._reads.plan,
                self._settings,
                in_item_order=True,
                on_progress=on_progress,
                on_wait=progress.note,
                name_of=lambda item: names[item],
                digests=self.verification.digests_of(self._reads) if self.verification else None,
            )

        kept, verification = self._kept_numbers, self.verification
        reads, member = self._reads, self._member
        return GroupSession(member, reads, plan, destination, session, kept=kept, verification=verification)
