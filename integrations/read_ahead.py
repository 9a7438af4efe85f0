"""One read plan for tensors that a library requests one by one, from several threads.

The library first names the tensors it will want, or takes one shard after the other. The first request starts one
stream of all these tensors, in the order in which the library will probably request them. Guarantees: `ReadAhead.take`
only waits for a tensor that is being read. A tensor that is requested twice or out of order, or that was dropped, is
left to the caller. Tensors that arrived and are not taken yet may use the memory limit of the load a second time. If
the library takes whole shards, the current shard does not count, as the library keeps it. Taken tensors are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from streamer._checkpoint_headers import OpenedCheckpoint
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.conditions import Condition
from streamer.core.errors import LoadCancelledError
from streamer.core.tensors.frameworks import Framework, framework_of

WINDOW_BYTES = 64 << 20  # several blocks: tensors that are wanted within this distance are read in file order
AT_A_TIME = 16  # tensors; threads that take tensors in order differ by a few
_NUMBER = re.compile(r"[0-9]{1,18}")


class ReadAhead:
    """Reads tensors of one checkpoint before they are taken. Thread-safe."""

    def __init__(
        self, checkpoint: OpenedCheckpoint, library: Framework, in_this_order: Iterable[ShardTensor] | None = None
    ) -> None:
        self._checkpoint, self._library = checkpoint, library
        self._changed = Condition()
        self._has_order = in_this_order is not None
        self._devices: dict[str, Any] = {}
        self._expected = {each.entry.name: each for each in in_this_order or ()}
        self._stream: Stream[Any] | None = None
        self._is_stopped = False
        self._is_pulling = False  # one thread waits for the engine; the others wait for `_changed`
        self._failure: BaseException | None = None
        self._wanted: list[ShardTensor] = []
        self._left: dict[str, tuple[int, int]] = {}  # name to the number of tensors and bytes before it in the plan
        self._awaited: set[str] = set()
        self._arrived: dict[str, Any] = {}
        self._held_bytes = self._pulled_bytes = self._pulled_tensors = 0
        self._limit_bytes: float = checkpoint.settings.memory_limit_bytes

    def expect(self, tensor: ShardTensor) -> None:
        """Record that a tensor will be taken, unless reading has begun."""
        with self._changed:
            if self._stream is None:
                self._expected[tensor.entry.name] = tensor

    def place(self, name: str, device: Any) -> None:
        """Set the device to which a tensor is read, unless reading has begun; then the device is ignored."""
        with self._changed:
            if self._stream is None:
                self._devices[name] = device

    def forget(self, names: Iterable[str]) -> None:
        """Record that tensors will not be taken, unless reading has begun or the order was given."""
        with self._changed:
            if self._stream is None and not self._has_order:
                for name in names:
                    self._expected.pop(name, None)

    def stop(self) -> None:
        """Stop reading, and drop tensors that were not taken; callers then read tensors on their own."""
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
        """Wait for a tensor and return it; None if the caller has to read it."""
        with self._changed:
            if self._failure is not None and not self._is_stopped:
                raise self._failure
            if self._stream is None and not self._is_stopped and name in self._expected:
                self._start()
            if name not in self._left or name in self._awaited:
                return None
            if self._is_far(name):
                if self._awaited or self._is_pulling:
                    del self._left[name]  # so that it is dropped when it arrives
                    return None
                self._skip_to(name)
            self._awaited.add(name)
            try:
                return self._waited(name)
            finally:
                self._awaited.discard(name)

    def take_part(self, wanted: ShardTensor) -> Any:
        """Take a tensor if the caller wants all of it. For a part, stop: such a caller rarely takes whole tensors."""
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
        if verification is not None and verification.needs_order:  # the hash of an object needs its bytes in order
            expected.sort(key=lambda each: (each.shard, each.entry.begin))
            self._limit_bytes = float("inf")
        elif not self._has_order:
            most_bytes = self._checkpoint.settings.memory_limit_bytes
            expected = in_order_of_names(expected, min(WINDOW_BYTES, most_bytes // 4))
        self._read(expected)

    def _read(self, wanted: list[ShardTensor]) -> None:
        verification = self._checkpoint.verification(wanted)
        # In the order of the plan: with little memory, tensors that arrive too early would have to be dropped.
        self._stream = Stream(self._checkpoint, wanted, self._library, verification, order="file", progress=False)
        self._wanted = wanted
        self._pulled_bytes = self._pulled_tensors = 0
        self._left = dict.fromkeys(self._arrived, (0, 0))
        position_bytes = 0
        starts: dict[int, tuple[int, int]] = {}
        for number, each in enumerate(wanted):
            place = number, position_bytes
            # Tensors of a whole shard may be taken in any order, for instance device by device.
            self._left[each.entry.name] = starts.setdefault(each.shard, place) if self._has_order else place
            position_bytes += _size_bytes(each)

    def _is_far(self, name: str) -> bool:
        number, position_bytes = self._left[name]
        is_many = number - self._pulled_tensors > AT_A_TIME
        return name not in self._arrived and is_many and position_bytes - self._pulled_bytes > self._limit_bytes

    def _skip_to(self, name: str) -> None:
        """Restart the read-ahead at a tensor; whoever needs an earlier tensor reads it without the read-ahead."""
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
        """Get the next tensor from the engine, without holding the lock."""
        assert self._stream is not None
        self._is_pulling = True
        pair, failure = None, None
        self._changed.release()
        try:
            pair = next(self._stream)
            if self._pulled_tensors + 1 == len(self._stream.names):
                next(self._stream, None)  # ends the stream
        except BaseException as error:  # every waiting thread raises it
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
        """Whether a tensor is in the shard that the library takes now: the shard of the tensor that just arrived."""
        return self._has_order and self._expected[name].shard == self._expected[arriving].shard


def in_order_of_names(tensors: Iterable[ShardTensor], window_bytes: int) -> list[ShardTensor]:
    """Sort tensors by name as libraries load them, with numbers by value; within a window, sort by file offset.

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
