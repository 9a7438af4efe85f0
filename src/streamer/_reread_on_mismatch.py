"""Reads all tensors, and reads objects with a wrong digest a second time; for consumers that keep all tensors.

The digest of an object can be compared only after its last tensor. By then, a stream has handed out the other tensors;
here, the second read hands them out again. If the digest mismatches again, an error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamer._checkpoint_headers import OpenedCheckpoint
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.fitting import KeptMemory
from streamer.core.checkpoint.report import LoadReport, joined_reports
from streamer.core.checkpoint.verification import Watched
from streamer.core.request.request import ProgressOption
from streamer.core.tensors.frameworks import Framework

if TYPE_CHECKING:
    from streamer.core.checkpoint.targets import Targets

__all__ = ["WholeRead"]


class WholeRead:
    """An iterator of ``(name, tensor)`` and a context manager; if a name comes twice, the last tensor counts."""

    def __init__(
        self,
        checkpoint: OpenedCheckpoint,
        wanted: list[ShardTensor],
        framework: Framework,
        *,
        targets: Targets | None = None,
        progress: ProgressOption = None,
    ) -> None:
        self._checkpoint, self._wanted, self._framework, self._targets = checkpoint, wanted, framework, targets
        self._kept = KeptMemory(wanted, framework, targets)
        if checkpoint.settings.check_memory is not False:
            self._kept.check_fit(checkpoint.label)
        self._first_stream: Stream | None = None
        self._wrong_shards = set[int]()
        try:
            verification = checkpoint.verification(wanted)
            if verification is not None:
                wrong = self._wrong_shards  # what is called must not refer to this object, or nobody would close it
                verification = Watched(verification, wanted, lambda shard, _: wrong.add(shard))
            self._stream = Stream(checkpoint, wanted, framework, verification, targets=targets, progress=progress)
        except BaseException:
            self._kept.end()
            raise
        self._kept.unread_share = self._stream.unread_share

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in file order."""
        return [each.entry.name for each in self._wanted]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the checkpoint."""
        return self._checkpoint.catalog.metadata

    @property
    def report(self) -> LoadReport:
        """The report so far, of both reads together."""
        last = self._stream.report
        return joined_reports(self._first_stream.report, last, self._wrong_shards) if self._first_stream else last

    def close(self) -> None:
        """Stop reading and join every thread."""
        self._stream.close()
        self._kept.end()

    def __iter__(self) -> WholeRead:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            return next(self._stream)
        except StopIteration:
            if not self._begin_again():
                raise
        return next(self._stream)

    def next_batch(self) -> list[tuple[str, Any]]:
        """Return the next tensors, as `Stream.next_batch`."""
        batch = self._stream.next_batch()
        return self._stream.next_batch() if not batch and self._begin_again() else batch

    def __enter__(self) -> WholeRead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _begin_again(self) -> bool:
        """Start the second read if the first read is complete and found mismatches; return whether it was started."""
        if self._first_stream is not None or not self._wrong_shards:
            return False
        again = [each for each in self._wanted if each.shard in self._wrong_shards]
        verification = self._checkpoint.verification(again)
        self._first_stream = self._stream
        self._stream = Stream(
            self._checkpoint, again, self._framework, verification, targets=self._targets, progress=False
        )
        return True
