"""``safe_open.prefetch`` of safetensors 0.9: tensors are read in the background, and each is handed out once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from streamer._stream import Stream
from streamer.compat.safetensors._errors import raised_as_safetensors
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.lazy_tensor import narrow
from streamer.core.quoting import quoted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PrefetchLoader", "planned"]


def planned(plan: Mapping[str, slice | None] | None, tensors: Mapping[str, ShardTensor]) -> list[ShardTensor]:
    """Return the tensors or rows to read, in file order.

    Raises:
        SafetensorError: the plan is empty, names a tensor that does not exist, or rows that are not consecutive.
    """
    if plan is None:
        plan = dict.fromkeys(tensors)
    if not plan:
        raise SafetensorError("prefetch plan selects no tensors")
    for name in plan:
        if name not in tensors:
            raise SafetensorError(f"File does not contain tensor {name}")
    return [_rows(each, plan[name]) for name, each in tensors.items() if name in plan]


def _rows(tensor: ShardTensor, rows: slice | None) -> ShardTensor:
    if rows is None:
        return tensor
    name = tensor.entry.name
    if not isinstance(rows, slice):
        raise SafetensorError(f"prefetch plan values must be None or a slice, got {type(rows).__name__} for {name}")
    if rows.step not in (None, 1):
        raise SafetensorError(f"prefetch plan slices must have step 1, got {rows.step} for {name}")
    if not tensor.entry.shape:
        raise SafetensorError(f"prefetch plan slices need a dimension, and {name} has none")
    entry, rest = narrow(tensor.entry, rows)
    if entry.shape == tensor.entry.shape and rest != (slice(None, None, 1),):
        raise SafetensorError(f"rows of {name} share bytes, and cannot be read apart")
    return ShardTensor(tensor.shard, entry)


class PrefetchLoader:
    """The tensors of one plan, which are read in the background; `safe_open.prefetch` returns one. Thread-safe."""

    def __init__(self, start: Callable[[], Stream[Any]]) -> None:
        with raised_as_safetensors():
            self._stream = start()
        self._reading = threading.Lock()
        self._arrived: dict[str, Any] = {}
        self._left = dict.fromkeys(self._stream.names)

    def names(self) -> list[str]:
        """Names of the tensors that are handed out, in file order."""
        return self._stream.names

    def __len__(self) -> int:
        return len(self._stream.names)

    def take(self, name: str) -> Any:
        """Wait for a tensor and return it; each tensor can be taken once.

        Raises:
            SafetensorError: the tensor is not planned, was already taken, or cannot be read.
        """
        with self._reading, raised_as_safetensors():
            if name not in self._left:
                state = "was already taken" if name in self._stream.names else "is not in the prefetch plan"
                raise SafetensorError(f"tensor {quoted(name)} {state}")
            while name not in self._arrived:
                arrived, tensor = next(self._stream)
                self._arrived[arrived] = tensor
            del self._left[name]
            return self._arrived.pop(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while (pair := self._next()) is not None:
            yield pair

    def close(self) -> None:
        """Stop reading, and drop every tensor that was not taken."""
        self._stream.close()
        with self._reading:
            self._left.clear()
            self._arrived.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _next(self) -> tuple[str, Any] | None:
        with self._reading, raised_as_safetensors():
            if not self._left:
                return None
            name, tensor = self._arrived.popitem() if self._arrived else next(self._stream)
            del self._left[name]
            return name, tensor
