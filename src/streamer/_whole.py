"""All tensors of a read whose consumer holds them until its end: what the storage's digest finds wrong is read again.

A digest of an object is known to be wrong with the object's last tensor. A stream has handed out the others by then;
here they are given a second time. An object that is wrong again is an error.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import Any

from streamer._opened import Opened
from streamer._progress import ProgressOption
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import Located
from streamer.core.checkpoint.report import LoadReport
from streamer.core.checkpoint.targets import Targets
from streamer.core.tensors.frameworks import Framework

__all__ = ["WholeRead"]


class WholeRead:
    """An iterator of ``(name, tensor)`` and a context manager; of a name that is given twice the last tensor counts."""

    def __init__(
        self,
        opened: Opened,
        wanted: list[Located],
        framework: Framework,
        *,
        targets: Targets | None = None,
        progress: ProgressOption = None,
    ) -> None:
        self._opened, self._wanted, self._framework, self._targets = opened, wanted, framework, targets
        self._first: Stream | None = None
        self._stream = Stream(opened, wanted, framework, targets=targets, progress=progress, has_second_chance=True)

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in file order."""
        return [located.entry.name for located in self._wanted]

    @property
    def report(self) -> LoadReport:
        """What was done so far, both times together."""
        last = self._stream.report
        return last if self._first is None else _joined(self._first, last)

    def __iter__(self) -> WholeRead:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            return next(self._stream)
        except StopIteration:
            wrong = self._stream.wrong_shards
            if self._first is not None or not wrong:
                raise
        again = [located for located in self._wanted if located.shard in wrong]
        self._first = self._stream
        self._stream = Stream(self._opened, again, self._framework, targets=self._targets, progress=False)
        return next(self._stream)

    def __enter__(self) -> WholeRead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()


def _joined(first: Stream, second: LoadReport) -> LoadReport:
    told = first.report
    read_s = told.stages["read"] + second.stages["read"]
    checks = zip(told.verified, second.verified, strict=True)
    return replace(
        told,
        bytes_read=told.bytes_read + second.bytes_read,
        seconds=told.seconds + second.stages["read"],
        requests=told.requests + second.requests,
        retries=told.retries + second.retries,
        outages=told.outages + second.outages,
        waited_s=told.waited_s + second.waited_s,
        probes=told.probes + second.probes,
        rereads=told.rereads + second.tensors,
        hedges=told.hedges + second.hedges,
        credential_refreshes=told.credential_refreshes + second.credential_refreshes,
        peak_held_bytes=max(told.peak_held_bytes, second.peak_held_bytes),
        peak_pinned_bytes=max(told.peak_pinned_bytes, second.peak_pinned_bytes),
        verified=tuple(now if shard in first.wrong_shards else then for shard, (then, now) in enumerate(checks)),
        stages={**told.stages, "read": read_s},
        is_complete=told.is_complete and second.is_complete,
    )
