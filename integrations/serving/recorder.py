"""Records the copies of deferred tensors into parameters, and makes them in one read, or before an operation needs one.

Guarantees: an operation in the recorder's thread that reads or writes a region that waits for its bytes fills it first.
Regions that are written twice are filled in the order of the writes. If the load fails, what was recorded is dropped.

Calls that take a parameter's memory without an operation (``numpy``, ``data_ptr``, ``torch.save``) fill it first, too.
Not seen are code that has taken the address before, other threads that do so, and operations on tensors of another
storage over the same memory, into which nothing was recorded: call `Recorder.fill` before them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

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

_log = OwnLogger()

_PROCESS = "process_weights_after_loading"
_MOST_NAMED = 8  # views in a line of the log
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # as torch names ``tensor.data = …``
_TAKING = "__array__ __dlpack__ data_ptr numpy share_memory_ storage tolist untyped_storage"
_READ_LISTS = {torch.tensor, torch.as_tensor, torch.asarray}  # without an operation for each tensor in them
_TAKES_MEMORY = {getattr(torch.Tensor, name) for name in _TAKING.split()}


class _Calls(TorchFunctionMode):
    """Sees the calls in this thread that are no operations, and yet take a tensor's memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fill memory that is taken; ``data`` gets the elements of a deferred tensor, else torch crashes."""
        del types
        if func in _TAKES_MEMORY:
            self._recorder.settle(args[0])
        elif func in _READ_LISTS:
            args = read_all(args, func.__name__)
        elif func == _SET_DATA and type(args[0]) is Deferred:
            args[0].refuse_other_shape("data =")
        elif func == _SET_DATA and type(args[1]) is Deferred:
            args = args[0], args[1].given_away("data =")
        return func(*args, **kwargs) if kwargs else func(*args)


class Recorder(torch_private_names.dispatch_mode(torch)):  # type: ignore[misc]
    """Records copies of deferred tensors in this thread, and fills what an operation needs.

    Attributes:
        early_bytes: What was read before the end, because an operation needed it: name and operation to bytes.
        early_reads: How many reads these were.
        early_fills: How often recorded copies were made before the end.
        copies: How many copies were recorded.
        checkpoints: The checkpoints whose tensors are copied; each says as a text what was read.
        is_active: Whether a load runs whose copies are recorded.
        defers_all: Whether small tensors are deferred, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_active = self.defers_all = False
        self._failure: BaseException | None = None
        self._forget()
        self._pending: list[Copy] = []
        self._by_storage: dict[int, list[Copy]] = {}  # the same
        self._lock = threading.RLock()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # else torch puts one more function around each operation
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a copy; before any other operation, fill what it reads or writes."""
        del types
        named, kind = kwargs or {}, kind_of(func)
        if kind == "composite":  # in inference mode, such operations arrive whole
            with self:
                return func.decompose(*args, **named)
        if kind == "view":  # of a parameter, too: it reads no element
            return func(*args, **named)
        first: Any = args[0] if args else None
        if kind == "copy_" and type(args[1]) is Deferred and not args[1].is_read and type(first) is not Deferred:
            if first.is_meta:
                return first
            with torch_private_names.outside_torch_functions(torch):
                if self._record(first, args[1]):
                    return first
        if any(map(_is_nested, args)):
            args = read_all(args, str(func))  # torch finds no class in lists of lists
        if self._pending:
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
        if not self._pending:
            return
        with self._lock, torch_private_names.outside_torch_functions(torch):
            if tensor.is_meta or not tensor.numel():
                return
            if not is_plain(tensor):  # a wrapper of other tensors, such as a DTensor
                self.early_fills += 1
                self.fill()
                return
            key = torch_private_names.address_of_storage(tensor.untyped_storage())
            own = Elements.of(tensor)
            if any(_meet(own, Elements.of(each.destination)) for each in self._by_storage.get(key, ())):
                self.early_fills += 1
                self.fill()

    def filled_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that fills what is recorded before it runs."""

        @wraps(function)
        def filled(*arguments: Any, **named: Any) -> Any:
            self.early_fills += bool(self._pending)
            self.fill()
            return function(*arguments, **named)

        return filled

    def fill(self, *, is_last: bool = False) -> None:
        """Make all copies that are recorded; if that fails, the others are dropped."""
        with self._reading():
            pending, self._pending, self._by_storage = self._pending, [], {}
            waves: dict[int, list[Copy]] = {}
            for number, each in zip(_turns(pending), pending, strict=True):
                waves.setdefault(number, []).append(each)
            for _, wave in sorted(waves.items()):
                by_checkpoint: dict[int, list[Copy]] = {}
                for each in wave:
                    by_checkpoint.setdefault(id(each.deferred.late_stored.checkpoint), []).append(each)
                for group in by_checkpoint.values():
                    group[0].deferred.late_stored.checkpoint.fill(group, is_last=is_last)

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
        self.early_bytes = Counter[str]()
        self.early_fills = self.early_reads = self.copies = 0
        self.checkpoints: list[Any] = []

    @contextmanager
    def around(self, model: Any) -> Iterator[None]:
        """Record one load in a ``with`` block; at its end, fill the parameters, or drop the record if it raises."""
        self._forget()
        self.is_active = True
        try:
            with self, _Calls(self), _filled_before_processing(model, self):
                yield
            if self._failure is not None:
                raise self._failure
            self.fill(is_last=True)
            _read_kept(model)
        except BaseException:
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


@contextmanager
def _filled_before_processing(model: Any, recorder: Recorder) -> Iterator[None]:
    """Fill what is recorded before the engine processes a layer within the load: kernels take parameters by address."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    methods = {id(each): each for each in (getattr(module, "quant_method", None) for module in modules)}
    wrapped = [
        each for each in methods.values() if callable(getattr(each, _PROCESS, None)) and hasattr(each, "__dict__")
    ]
    before = [vars(each).get(_PROCESS) for each in wrapped]
    for each in wrapped:
        setattr(each, _PROCESS, recorder.filled_before(getattr(each, _PROCESS)))
    try:
        yield
    finally:
        for each, own in zip(wrapped, before, strict=True):
            if own is None:
                delattr(each, _PROCESS)
            else:
                setattr(each, _PROCESS, own)


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
                if isinstance(each, Deferred):
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
