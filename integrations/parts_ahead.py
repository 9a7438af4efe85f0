"""One read plan for the parts of tensors that a rank takes, although the library does not announce these parts.

The layers of a model are alike, and a rank takes the same part of each. The first layer shows which rows of a
tensor are taken; from the second layer on, the same rows of all other layers are read ahead. Guarantees: a wrong guess
costs only a read that is not used; the part that the library requests is then read on its own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.integrations.read_ahead import ReadAhead

# The plan starts after this many tensors of a second layer were read on their own. By then, all threads have requested
# their tensors of the first layer.
LEARNED_AFTER = 8
_FIRST_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")


class PartsAhead:
    """Reads parts of tensors of one checkpoint before they are taken. Thread-safe."""

    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead
        self._guard = threading.Lock()
        self._expected: dict[str, ShardTensor] = {}
        self._parts: dict[str, _Part | None] = {}  # by kind; None if two tensors of a kind differ
        self._repeated = 0
        self._planned: dict[str, ShardTensor] | None = None

    def expect(self, tensor: ShardTensor) -> None:
        """Record that a tensor, or a part of it, may be taken."""
        with self._guard:
            self._expected[tensor.entry.name] = tensor

    def forget(self, names: Iterable[str]) -> None:
        """Record that tensors will not be taken, unless reading has begun."""
        with self._guard:
            for name in names:
                self._expected.pop(name, None)

    def stop(self) -> None:
        """Stop reading."""
        self._ahead.stop()

    def take_part(self, wanted: ShardTensor) -> Any:
        """Wait for rows of a tensor and return them; None if the caller has to read them."""
        name = wanted.entry.name
        with self._guard:
            if self._planned is None and self._learn(wanted):
                self._plan()
            planned = (self._planned or {}).get(name)
        return self._ahead.take(name) if planned == wanted else None

    def _learn(self, wanted: ShardTensor) -> bool:
        """Record the part that is taken of a kind of tensor; return whether the plan can start."""
        kind, whole = _kind_of(wanted.entry.name), self._expected.pop(wanted.entry.name, None)
        part = None if whole is None else _Part.of(whole, wanted)  # None for a second part of the same tensor
        if kind not in self._parts and part is not None:
            self._parts[kind] = part
            return False
        if part is None or self._parts.get(kind) != part:
            self._parts[kind] = None
            return False
        self._repeated += 1
        return self._repeated >= LEARNED_AFTER

    def _plan(self) -> None:
        self._planned = {}
        for name, whole in self._expected.items():
            part = self._parts.get(_kind_of(name))
            if part is not None and part.is_of(whole):
                self._planned[name] = part.cut(whole)
                self._ahead.expect(self._planned[name])


class _Part(NamedTuple):
    """The part that is taken of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    rows: tuple[int, ...]  # the shape of the part
    offset_bytes: int  # in the tensor
    size_bytes: int

    @classmethod
    def of(cls, whole: ShardTensor, wanted: ShardTensor) -> _Part:
        entry, rows = whole.entry, wanted.entry
        return cls(entry.dtype, entry.shape, rows.shape, rows.begin - entry.begin, rows.end - rows.begin)

    def is_of(self, whole: ShardTensor) -> bool:
        return (whole.entry.dtype, whole.entry.shape) == (self.dtype, self.shape)

    def cut(self, whole: ShardTensor) -> ShardTensor:
        begin = whole.entry.begin + self.offset_bytes
        end = begin + self.size_bytes
        return ShardTensor(whole.shard, whole.entry._replace(shape=self.rows, begin=begin, end=end))


def _kind_of(name: str) -> str:
    """Return a tensor's name without the number of its layer. Each expert is a kind of its own: ranks may have few."""
    return _FIRST_NUMBER.sub("*", name, count=1)
