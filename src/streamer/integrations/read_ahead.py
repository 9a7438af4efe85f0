"""One read plan for the tensors that a library asks for one by one, from several threads.

The library says first which tensors it will want, or takes one shard after the other; the first that it takes starts
one stream of all of them, in the order in which it is likely to go on. Guarantees: `ReadAhead.take` never waits for a
tensor that is not on its way: one that is taken twice, out of order, or was let go of is left to a read of its own.
Tensors that have arrived and are not taken yet may use the memory limit of the load a second time. If the library takes
whole shards, the tensors of the current shard do not count, as the library keeps them. A tensor that was taken is not
kept here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any

from streamer._opened_checkpoint import OpenedCheckpoint
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.errors import LoadCancelledError
from streamer.core.tensors.frameworks import Framework, framework_of

__all__ = ["ReadAhead", "in_order_of_names"]

WINDOW_BYTES = 64 << 20  # several blocks: what is wanted this close to each other is read as it lies in the file
AT_A_TIME = 16  # tensors; threads that take them in order are a few apart
_NUMBER = re.compile(r"[0-9]{1,18}")


class ReadAhead:
    """Tensors of one checkpoint that are read before they are taken. Thread-safe.

    Args:
        checkpoint: Theirs.
        library: Makes the tensors.
        in_this_order: All that will be taken; None: what `expect` names, by name.
    """

    def __init__(
        self, checkpoint: OpenedCheckpoint, library: Framework, in_this_order: Iterable[ShardTensor] | None = None
    ) -> None:
        self._checkpoint, self._library = checkpoint, library
        self._changed = threading.Condition()
        self._has_order = in_this_order is not None
        self._devices: dict[str, Any] = {}
        self._expected = {each.entry.name: each for each in in_this_order or ()}
        self._stream: Stream[Any] | None = None
        self._is_stopped = False
        self._is_pulling = False  # by one thread, which waits for the engine; the others wait for `_changed`
        self._failure: BaseException | None = None
        self._wanted: list[ShardTensor] = []
        self._left: dict[str, tuple[int, int]] = {}  # with tensors and bytes before it in the plan
        self._awaited: set[str] = set()
        self._arrived: dict[str, Any] = {}
        self._held_bytes = self._pulled_bytes = self._pulled_tensors = 0
        self._limit_bytes: float = checkpoint.settings.memory_limit_bytes

    def expect(self, tensor: ShardTensor) -> None:
        """Note that a tensor will be taken, unless reading has begun."""
        with self._changed:
            if self._stream is None:
                self._expected[tensor.entry.name] = tensor

    def place(self, name: str, device: Any) -> None:
        """Note to which device a tensor is to be read, unless reading has begun: then it comes as all others."""
        with self._changed:
            if self._stream is None:
                self._devices[name] = device

    def forget(self, names: Iterable[str]) -> None:
        """Note that tensors will not be taken, unless reading has begun or all were named at first."""
        with self._changed:
            if self._stream is None and not self._has_order:
                for name in names:
                    self._expected.pop(name, None)

    def stop(self) -> None:
        """Read nothing more, and let go of what was not taken; it is left to reads of its own."""
        with self._changed:
            self._is_stopped = True
            self._left.clear()
            self._arrived.clear()
            self._expected.clear()
            stream = self._stream
            self._changed.notify_all()
        if stream is not None:
            stream.close()

    def take(self, name: str) -> Any:
        """Wait for a tensor and take it; None: it is to be read on its own.

        Raises:
            StreamerError: as `streamer.load`; all that wait get the same.
        """
        with self._changed:
            if self._failure is not None and not self._is_stopped:
                raise self._failure
            if self._stream is None and not self._is_stopped and name in self._expected:
                self._start()
            if name not in self._left or name in self._awaited:
                return None
            if self._is_far(name):
                if self._awaited or self._is_pulling:
                    del self._left[name]  # it will be dropped when it arrives
                    return None
                self._skip_to(name)
            self._awaited.add(name)
            try:
                return self._waited(name)
            finally:
                self._awaited.discard(name)

    def take_part(self, wanted: ShardTensor) -> Any:
        """Take a tensor of which all is wanted. Who wants a part of one will not want others whole: the plan ends."""
        name = wanted.entry.name
        if self._expected.get(name, wanted) == wanted:
            return self.take(name)
        self.stop()
        return None

    def _start(self) -> None:
        expected = list(self._expected.values())
        if self._devices:
            self._library = framework_of("pt", {"": "cpu", **self._devices}, None)
        verification = self._checkpoint.verification(expected)
        if verification is not None and verification.needs_order:  # an object's digest is of its bytes in their order
            expected.sort(key=lambda each: (each.shard, each.entry.begin))
            self._limit_bytes = float("inf")
        elif not self._has_order:
            most_bytes = self._checkpoint.settings.memory_limit_bytes
            expected = in_order_of_names(expected, min(WINDOW_BYTES, most_bytes // 4))
        self._read(expected)

    def _read(self, wanted: list[ShardTensor]) -> None:
        verification = self._checkpoint.verification(wanted)
        # In the order of the plan: what completes before it would have to be let go of where memory is little.
        self._stream = Stream(self._checkpoint, wanted, self._library, verification, order="file", progress=False)
        self._wanted = wanted
        self._pulled_bytes = self._pulled_tensors = 0
        self._left = dict.fromkeys(self._arrived, (0, 0))
        position_bytes = 0
        starts: dict[int, tuple[int, int]] = {}
        for number, each in enumerate(wanted):
            place = number, position_bytes
            # Of a shard that is taken as a whole, tensors may come in any order, as one device's after another's.
            self._left[each.entry.name] = starts.setdefault(each.shard, place) if self._has_order else place
            position_bytes += _size_bytes(each)

    def _is_far(self, name: str) -> bool:
        number, position_bytes = self._left[name]
        is_many = number - self._pulled_tensors > AT_A_TIME
        return name not in self._arrived and is_many and position_bytes - self._pulled_bytes > self._limit_bytes

    def _skip_to(self, name: str) -> None:
        """Read on from a tensor: what lies before it was not wanted, or is left to reads of its own."""
        assert self._stream is not None
        self._stream.close()
        first, _ = self._left[name]
        self._read([each for each in self._wanted[first:] if each.entry.name in self._left])

    def _waited(self, name: str) -> Any:
        while name not in self._arrived:
            if self._is_stopped:
                return None
            if self._failure is not None:
                raise self._failure
            if self._is_pulling:
                self._changed.wait()
            else:
                self._pull()
        del self._left[name]
        self._held_bytes -= _size_bytes(self._expected[name])
        return self._arrived.pop(name)

    def _pull(self) -> None:
        """Get the next tensor from the engine; the lock is not held meanwhile."""
        assert self._stream is not None
        self._is_pulling = True
        pair, failure = None, None
        self._changed.release()
        try:
            pair = next(self._stream)
            if self._pulled_tensors + 1 == len(self._stream.names):
                next(self._stream, None)  # which ends it
        except BaseException as error:  # raised by every thread that waits
            failure = error
        finally:
            self._changed.acquire()
            self._is_pulling = False
            self._changed.notify_all()
        if failure is not None and not (self._is_stopped and isinstance(failure, LoadCancelledError)):
            self._failure = failure
        if pair is not None and not self._is_stopped:
            self._keep(*pair)

    def _keep(self, name: str, tensor: Any) -> None:
        self._pulled_tensors += 1
        self._pulled_bytes += _size_bytes(self._expected[name])
        if name not in self._left:
            return
        self._arrived[name] = tensor
        self._held_bytes += _size_bytes(self._expected[name])
        kept = {each for each in self._arrived if each in self._awaited or self._is_collected(each, name)}
        for oldest in [each for each in self._arrived if each not in kept]:
            if self._held_bytes <= self._limit_bytes:
                break
            self._held_bytes -= _size_bytes(self._expected[oldest])
            del self._arrived[oldest], self._left[oldest]

    def _is_collected(self, name: str, arriving: str) -> bool:
        """Whether a tensor is of the shard that a library collects now, of which the last tensor arrived."""
        return self._has_order and self._expected[name].shard == self._expected[arriving].shard


def in_order_of_names(tensors: Iterable[ShardTensor], window_bytes: int) -> list[ShardTensor]:
    """Sort tensors as libraries load them, numbers in their names by value; those wanted together as they lie.

    Args:
        tensors: To sort.
        window_bytes: How close to each other they are wanted together.

    Example:
        >>> from streamer.core.format.header import TensorEntry
        >>> tensors = [ShardTensor(0, TensorEntry(f"layers.{i}.w", "U8", (4,), 4 * i, 4 * i + 4)) for i in (2, 10, 9)]
        >>> [each.entry.name for each in in_order_of_names(tensors, 4)]
        ['layers.2.w', 'layers.9.w', 'layers.10.w']
    """
    windows: list[list[ShardTensor]] = [[]]
    open_bytes = 0
    for each in sorted(tensors, key=lambda tensor: _natural(tensor.entry.name)):
        if open_bytes + _size_bytes(each) > window_bytes:
            windows.append([])
            open_bytes = 0
        windows[-1].append(each)
        open_bytes += _size_bytes(each)
    return [
        each for window in windows for each in sorted(window, key=lambda tensor: (tensor.shard, tensor.entry.begin))
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if _NUMBER.fullmatch(part) else (1 << 62, part) for part in name.split(".")]


def _size_bytes(tensor: ShardTensor) -> int:
    return tensor.entry.end - tensor.entry.begin
