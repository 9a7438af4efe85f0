"""All tensors of a read whose consumer holds them until its end: what the storage's digest finds wrong is read again.

A digest of an object is known to be wrong with the object's last tensor. A stream has handed out the others by then;
here they are given a second time. An object that is wrong again is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from streamer import _native
from streamer._opened import Opened
from streamer._progress import ProgressOption
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.report import LoadReport, ObjectCheck, joined_reports
from streamer.core.checkpoint.targets import Targets
from streamer.core.checkpoint.verification import Pieces, Verification
from streamer.core.errors import ChecksumError
from streamer.core.tensors.frameworks import Framework

__all__ = ["WholeRead"]


class WholeRead:
    """An iterator of ``(name, tensor)`` and a context manager; of a name that is given twice the last tensor counts."""

    def __init__(
        self,
        opened: Opened,
        wanted: list[ShardTensor],
        framework: Framework,
        *,
        targets: Targets | None = None,
        progress: ProgressOption = None,
    ) -> None:
        self._opened, self._wanted, self._framework, self._targets = opened, wanted, framework, targets
        verification = opened.verification(wanted)
        self._first_chance = _FirstChance(verification, wanted) if verification else None
        self._first_stream: Stream | None = None
        self._stream = Stream(opened, wanted, framework, self._first_chance, targets=targets, progress=progress)

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in file order."""
        return [each.entry.name for each in self._wanted]

    @property
    def report(self) -> LoadReport:
        """What was done so far, both times together."""
        last = self._stream.report
        return joined_reports(self._first_stream.report, last, self._wrong_shards) if self._first_stream else last

    def __iter__(self) -> WholeRead:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            return next(self._stream)
        except StopIteration:
            if self._first_stream is not None or not self._wrong_shards:
                raise
        self._first_stream = self._stream
        self._stream = self._second_stream()
        return next(self._stream)

    def __enter__(self) -> WholeRead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    @property
    def _wrong_shards(self) -> set[int]:
        return self._first_chance.wrong_shards if self._first_chance else set()

    def _second_stream(self) -> Stream:
        again = [each for each in self._wanted if each.shard in self._wrong_shards]
        verification = self._opened.verification(again)
        return Stream(self._opened, again, self._framework, verification, targets=self._targets, progress=False)


class _FirstChance:
    """A `Verification` for which a wrong object is none of an error yet.

    Attributes:
        wrong_shards: Shards that are not what their storage's digest says.
    """

    def __init__(self, verification: Verification, wanted: Sequence[ShardTensor]) -> None:
        self._verification, self._wanted = verification, wanted
        self.wrong_shards: set[int] = set()

    @property
    def digests(self) -> _native.DigestPlan | None:
        return self._verification.digests

    @property
    def needs_order(self) -> bool:
        return self._verification.needs_order

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        try:
            self._verification.take(item, data, pieces)
        except ChecksumError:
            self.wrong_shards.add(self._wanted[item].shard)

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        return self._verification.checks(compares_answers)
