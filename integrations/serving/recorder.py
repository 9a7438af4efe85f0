"""Records the copies of deferred tensors into parameters, and makes them in the background, or when one is needed.

Guarantees: an operation in the recorder's thread that reads or writes a region that waits for its bytes fills it first.
Regions that are written twice are filled in the order of the writes. If the load fails, what was recorded is dropped.

Calls that take a parameter's memory without an operation (``numpy``, ``data_ptr``, ``torch.save``) fill it first, too,
in any thread. Not seen are code that has taken the address before, code that ``torch.compile`` has made, and operations
on tensors of another storage over the same memory, into which nothing was recorded: call `Recorder.fill` before them.

One read runs at a time, so that a load needs the memory of one: copies are made in one other thread, in the order of
their batches, and this thread waits for that one before it reads itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from itertools import pairwise
from typing import Any

import torch

from streamer.core.collector import collector_paused
from streamer.core.errors import UsageError
from streamer.core.log import OwnLogger
from streamer.core.quoting import size_text
from streamer.core.tensors import torch_private_names
from streamer.core.tensors.shared_memory import Elements, are_apart
from streamer.integrations.serving.deferred_tensors import (
    Copy,
    Deferred,
    all_tensors,
    expanded,
    is_plain,
    kind_of,
    read_all,
)
from streamer.integrations.serving.patched_calls import calls_seen_by, filled_before_processing

_log = OwnLogger()

_MOST_NAMED = 8  # views in a line of the log


class Recorder(torch_private_names.dispatch_mode(torch)):  # type: ignore[misc]
    """Records copies of deferred tensors in this thread, and fills what an operation needs.

    Attributes:
        early_bytes: What was read before the end, because an operation needed it: name and operation to bytes.
        early_reads: How many reads these were.
        early_fills: How often an operation made the recorder fill, or waited for what it does in the background.
        copies: How many copies were recorded.
        memories: Those of all deferred tensors; they live as long as one of these tensors.
        forms: Views of forms, by the form, the operation and its arguments; see `Deferred.late_view_of`.
        checkpoints: The checkpoints whose tensors are copied; each says as a text what was read.
        is_active: Whether a load runs whose copies are recorded.
        defers_all: Whether small tensors are deferred, too.
    """

    checkpoints: list[Any]
    forms: dict[Any, Any]
    memories: list[Callable[[], Any]]
    _pending: list[Copy]
    _by_storage: dict[int, list[Copy]]  # the same
    _in_flight: dict[int, list[Copy]]  # those that the other thread makes
    _batch: threading.Thread | None  # this thread
    _failures: list[BaseException]  # its error
    _failure: BaseException | None  # the first of this load

    def __init__(self) -> None:
        super().__init__()
        self.is_active = self.defers_all = False
        self._lock = threading.RLock()
        self._forget()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # else torch puts one more function around each operation
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a copy; before any other operation, fill what it reads or writes."""
        kind = kind_of(func)
        first: Any = args[0] if args else None
        if kind == "view":  # of a parameter, too: it reads no element
            made = first.late_view_of(func, args[1:], kwargs or {}) if type(first) is Deferred else None
            return func(*args, **(kwargs or {})) if made is None else made
        named = kwargs or {}
        if kind == "composite":  # in inference mode, such operations arrive whole
            with self:
                return func.decompose(*args, **named)
        if kind == "copy_" and type(args[1]) is Deferred and not args[1].is_read and type(first) is not Deferred:
            if first.is_meta:
                return first
            with torch_private_names.outside_torch_functions(torch):
                if self._record(first, args[1]):
                    return first
        if any(map(_is_nested, args)):
            args = read_all(args, str(func))  # torch finds no class in lists of lists
        if self._by_storage or self._in_flight:
            for each in all_tensors((*args, *named.values())):
                if type(each) is not Deferred:
                    self.settle(each)
        return func(*args, **named)

    def _record(self, destination: torch.Tensor, deferred: Deferred) -> bool:
        """Record a copy; return False if it has to be made now."""
        if not is_plain(destination):
            return False
        if destination.shape != deferred.shape:
            deferred = expanded(deferred, destination.shape)
        if type(deferred) is not Deferred:
            return False  # the shapes do not fit, and the copy raises
        # Another tensor of the same memory: a loader may give the parameter other memory afterwards.
        region = torch_private_names.alias(torch, destination)
        key = torch_private_names.address_of_storage(region.untyped_storage())
        with self._lock:
            self._pending.append(Copy(region, deferred))
            self._by_storage.setdefault(key, []).append(self._pending[-1])
            self.copies += 1
        return True

    def settle(self, tensor: torch.Tensor) -> None:
        """Fill what is recorded, if a part of this tensor waits for it."""
        if not (self._by_storage or self._in_flight):
            return
        with torch_private_names.outside_torch_functions(torch):
            if tensor.is_meta or not tensor.numel():
                return
            if is_plain(tensor):  # if not, it is a wrapper of other tensors, such as a DTensor
                key = torch_private_names.address_of_storage(tensor.untyped_storage())
                waiting = [*self._by_storage.get(key, ()), *self._in_flight.get(key, ())]
                own = Elements.of(tensor) if waiting else None
                if own is None or not any(_meet(own, Elements.of(each.destination)) for each in waiting):
                    return
            with self._lock:
                self.early_fills += 1
                self.fill()

    def filled_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that fills what is recorded before it runs."""

        @wraps(function)
        def filled(*arguments: Any, **named: Any) -> Any:
            self.early_fills += bool(self._by_storage or self._in_flight)
            self.fill()
            return function(*arguments, **named)

        return filled

    def fill_ahead(self) -> None:
        """Begin to make the recorded copies in another thread, unless it still makes earlier ones."""
        if not self._pending or (self._batch is not None and self._batch.is_alive()):
            return
        with self._reading():
            self._end_batch()
            copies, failures = self._pending, list[BaseException]()
            in_stream: Any = nullcontext()  # work on the parameters may wait in the stream of this thread
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                in_stream = torch.cuda.stream(torch.cuda.current_stream())

            def make() -> None:
                try:
                    with torch_private_names.outside_torch_functions(torch), torch.no_grad(), in_stream:
                        _make(copies, is_planned=True)
                except BaseException as error:
                    failures.append(error)

            batch = threading.Thread(target=make, name="streamer-fill", daemon=True)
            with suppress(RuntimeError):  # the system has no thread: the copies are made later
                batch.start()
                self._batch, self._failures, self._in_flight = batch, failures, self._by_storage
                self._pending, self._by_storage = [], {}

    def fill(self, *, is_planned: bool = False) -> None:
        """Make all copies that are recorded; if that fails, the others are dropped."""
        with self._reading():
            self._end_batch()
            pending, self._pending, self._by_storage = self._pending, [], {}
            _make(pending, is_planned=is_planned)

    def _end_batch(self) -> None:
        """Wait for the other thread; raise its error."""
        if self._batch is not None:
            self._batch.join()
            self._batch, self._in_flight = None, {}
            for error in self._failures:
                raise error

    def _stop_batch(self) -> None:
        """Wait until the other thread writes nothing more, because the load fails."""
        for each in self.checkpoints:
            each.stop()
        if self._batch is not None:
            self._batch.join()
            self._batch, self._in_flight = None, {}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read in a ``with`` block; a loader may catch the error of a read, and the load fails all the same."""
        with (
            self._lock,
            torch_private_names.without_dispatch_modes(torch),
            torch_private_names.outside_torch_functions(torch),
            torch.no_grad(),
        ):
            try:
                yield
            except BaseException as error:
                self._failure = self._failure or error
                raise

    def copy_at_once(self, destination: torch.Tensor, deferred: Deferred) -> torch.Tensor:
        """Copy in another thread, or after the end: earlier copies into this region come first."""
        if destination.is_meta:
            return destination
        self.settle(destination)
        if destination.shape != deferred.shape:
            return destination.copy_(deferred.read_now("copy_"))
        self.read_alone(Copy(destination, deferred))
        return destination

    def read_alone(self, one: Copy, why: str | None = None) -> None:
        """Make one copy that is not recorded; name it in `early_bytes` with the reason, if there is one."""
        with self._reading():
            self._end_batch()
            if one.destination.numel():
                checkpoint = one.deferred.late_stored.checkpoint
                direct_bytes = checkpoint.direct_bytes
                checkpoint.fill([one])
                if why is not None:  # into memory that is no parameter's
                    checkpoint.direct_bytes = direct_bytes
        if why is not None:
            self.early_reads += 1
            self.early_bytes[f"{one.deferred.late_stored.name}: {why}"] += one.deferred.late_view.nbytes

    def _forget(self) -> None:
        self.early_bytes, self.checkpoints, self.forms, self.memories = Counter[str](), [], {}, []
        self.early_fills = self.early_reads = self.copies = 0
        self._pending, self._by_storage, self._in_flight, self._batch, self._failure = [], {}, {}, None, None

    @contextmanager
    def around(self, model: Any) -> Iterator[None]:
        """Record one load in a ``with`` block; at its end, fill the parameters, or drop the record if it raises."""
        with self._lock:
            if self.is_active:
                hint = "Let the engine make a loader for each of them, or fill one after the other"
                raise UsageError("one loader is to fill two models at the same time", hint=hint)
            self.is_active = True
        self._forget()
        try:
            with self, calls_seen_by(self), filled_before_processing(model, self):
                yield
            if self._failure is not None:
                raise self._failure
            self.fill(is_planned=True)
            if any(each() for each in self.memories):  # to look for kept ones takes 10 µs a module
                _read_kept(model)
        except BaseException:
            self._stop_batch()
            _log.warning(
                "The load failed: parameters hold old, new or partly new values, or none, until another succeeds"
            )
            raise
        finally:
            self.is_active, self._failure = False, None
            with self._lock:
                self._pending, self._by_storage = [], {}
        for each in self.checkpoints:
            _log.info("%s", each)
        if self.early_bytes:
            most = "; ".join(f"{what} ({size_text(size)})" for what, size in self.early_bytes.most_common(_MOST_NAMED))
            _log.info("%d views were read at once, for loaders that compute: %s", self.early_reads, most)


def _make(copies: Sequence[Copy], *, is_planned: bool) -> None:
    """Make copies; those into bytes that others write, too, in their order."""
    waves: dict[int, list[Copy]] = {}
    with collector_paused():
        turns = _turns(copies)
    for number, each in zip(turns, copies, strict=True):
        waves.setdefault(number, []).append(each)
    for _, wave in sorted(waves.items()):
        by_checkpoint: dict[int, list[Copy]] = {}
        for each in wave:
            by_checkpoint.setdefault(id(each.deferred.late_stored.checkpoint), []).append(each)
        for group in by_checkpoint.values():
            group[0].deferred.late_stored.checkpoint.fill(group, is_planned=is_planned)


def _is_nested(argument: Any) -> bool:
    return isinstance(argument, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in argument)


def _meet(one: Elements, other: Elements) -> bool:
    """Whether two tensors have a byte in common; True if that takes too long to find out."""
    (_, begin, end), (_, other_begin, other_end) = one.span(), other.span()
    if end <= other_begin or other_end <= begin:
        return False
    ranges, other_ranges = one.ranges(), other.ranges()
    return ranges is None or other_ranges is None or ranges.meets(other_ranges)


def _turns(copies: Sequence[Copy]) -> list[int]:
    """Number copies: one that writes the bytes of an earlier one has a higher number."""
    turns, elements = [0] * len(copies), [Elements.of(each.destination) for each in copies]
    spans = sorted((*each.span()[1:], at) for at, each in enumerate(elements))
    if all(end <= begin for (_, end, _), (begin, _, _) in pairwise(spans)) or are_apart(elements):
        return turns
    overlapping = list[tuple[int, int]]()
    reaching = list[tuple[int, int]]()
    for begin, end, at in spans:
        reaching = [(other_end, other) for other_end, other in reaching if other_end > begin]
        for _, other in reaching:
            if _meet(elements[at], elements[other]):
                overlapping.append((min(at, other), max(at, other)))
        reaching.append((end, at))
    for earlier, later in sorted(overlapping, key=lambda pair: pair[::-1]):
        turns[later] = max(turns[later], turns[earlier] + 1)
    return turns


def _read_kept(model: Any) -> None:
    """Give data to the deferred tensors that modules have kept; what several modules share stays shared."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        for kept in [vars(module), *(each for each in vars(module).values() if isinstance(each, dict))]:
            for name, each in [*kept.items()]:
                if type(each) is Deferred:
                    if id(each) not in made:
                        made[id(each)] = _with_data(each)
                    kept[name] = made[id(each)]


def _with_data(kept: Deferred) -> torch.Tensor:
    data = kept.given_away("kept by the model")
    if not isinstance(kept, torch.nn.Parameter):
        return data
    parameter = torch.nn.Parameter(data, kept.requires_grad)
    vars(parameter).update({name: value for name, value in vars(kept).items() if not name.startswith("late_")})
    return parameter
