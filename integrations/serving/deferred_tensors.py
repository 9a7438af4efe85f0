"""Tensors of a checkpoint that come later.

A deferred tensor knows its name, dtype, shape and place in the checkpoint, and has no bytes. Views and copies of it are
deferred, too. A copy of it into another tensor is recorded (`streamer.integrations.serving.recorder`). Any other
operation reads the elements of this view at once, and goes on with data.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from streamer.core.tensors import torch_private_names
from streamer.core.tensors.torch_modes import normal_tensors

if TYPE_CHECKING:
    from streamer.core.checkpoint.catalog import ShardTensor
    from streamer.integrations.serving.recorder import Recorder

_aten = torch.ops.aten
_COPY, _IS_PINNED = _aten.copy_.default, _aten.is_pinned.default
_COPIES = torch_private_names.copies(torch)
_VIEWS = torch_private_names.views_without_alias(torch)
_LIKE = "empty_like zeros_like ones_like full_like new_empty new_zeros new_ones new_full"
_OF_SHAPE = {getattr(_aten, name).default for name in _LIKE.split()}  # of their first argument, these need no bytes
_BY_ADDRESS = torch_private_names.views_by_address(torch)
_OTHER_SHAPE = {_aten.set_.source_Tensor, _aten.set_.source_Storage_storage_offset, _aten.resize_.default}
_kinds: dict[int, str] = {}  # by the `id` of an operation, which torch keeps; its own hash is a function of Python


def kind_of(operation: Any) -> str:
    """Return ``view``, ``copy_``, ``clone``, ``reshaping`` (in place), ``composite`` (made of others) or ``other``."""
    kind = _kinds.get(id(operation))
    if kind is None:
        kind = "view" if operation.is_view or operation in _VIEWS else "other"
        if torch_private_names.is_composite(torch, operation):
            kind = "composite"
        elif torch.Tag.inplace_view in operation.tags or operation in _OTHER_SHAPE:
            kind = "reshaping"
        elif operation is _COPY:
            kind = "copy_"
        elif operation in _COPIES:
            kind = "clone"
        _kinds[id(operation)] = kind
    return kind


class Copy(NamedTuple):
    """A region of a tensor, and the deferred tensor that is copied into it; both have one shape."""

    destination: torch.Tensor
    deferred: Deferred


class Casts(NamedTuple):
    """The dtypes to which elements are cast, one after the other, and the device on which they then are."""

    dtypes: tuple[torch.dtype, ...]
    device: torch.device


_AS_STORED = Casts((), torch.device("cpu"))


class DeferredSource(NamedTuple):
    """A tensor of a checkpoint, from which deferred tensors read."""

    name: str
    checkpoint: Any  # the `PlannedCheckpoint` that has it
    recorder: Recorder  # what records copies of it
    wanted: ShardTensor  # its place


class _Memory:
    """What a deferred tensor and its views have in common: the stored tensor, or a copy of another deferred tensor.

    Attributes:
        whole: All elements of the memory, as the arguments of `Deferred.late_made`.
        value: The elements, after an operation has changed one of them in place; None before that.
    """

    def __init__(self, stored: DeferredSource, form: torch.Tensor, view: torch.Tensor, casts: Casts) -> None:
        self.whole = stored, form, view, casts
        self.value: torch.Tensor | None = None
        stored.recorder.memories.append(weakref.ref(self))

    def change(self, why: str) -> None:
        """Read all elements, because an operation is about to change some of them."""
        if self.value is None:
            self.value = Deferred.late_made(*self.whole, self).read_original(why)


class Deferred(torch.Tensor):
    """A tensor whose bytes come later."""

    __torch_function__ = torch_private_names.without_torch_function(torch)
    late_stored: DeferredSource  # the tensor of the checkpoint
    late_memory: _Memory  # what this tensor shares with its views
    late_form: torch.Tensor  # a meta tensor, whose geometry is that of this tensor in its memory
    late_view: torch.Tensor  # a meta tensor, whose geometry and dtype are those of the elements in the stored tensor
    late_casts: Casts  # what becomes of the stored elements
    late_value: torch.Tensor | None  # the elements, once they were read; None before that

    @staticmethod
    def of(stored: DeferredSource, form: torch.Tensor) -> Deferred:
        """Return all of a stored tensor; `form` is a meta tensor of its shape and dtype, which several may share."""
        return Deferred.late_made(stored, form, form, _AS_STORED, None)

    @staticmethod
    def late_made(
        stored: DeferredSource, form: torch.Tensor, view: torch.Tensor, casts: Casts, memory: _Memory | None
    ) -> Deferred:
        """Return a deferred tensor; without a memory, it begins one of its own."""
        with normal_tensors():
            made: Deferred = torch_private_names.tensor_without_bytes(torch, Deferred, form)(device=casts.device)
        return made._begun(stored, form, view, casts, memory)

    def _begun(
        self, stored: DeferredSource, form: torch.Tensor, view: torch.Tensor, casts: Casts, memory: _Memory | None
    ) -> Deferred:
        self.late_stored, self.late_value = stored, None
        self.late_memory = memory or _Memory(stored, form, view, casts)
        self.late_form, self.late_view, self.late_casts = form, view, casts
        return self

    @property
    def is_read(self) -> bool:
        """Whether the elements are there."""
        return self.late_value is not None or self.late_memory.value is not None

    def read_now(self, why: str) -> torch.Tensor:
        """Return the elements: those that operations have changed, or as they are stored."""
        changed = self.late_memory.value
        if changed is not None:
            first = self.late_form.storage_offset() * self.element_size()  # the memory begins with its first element
            elements = changed.as_strided((_reach(changed),), (1,)).view(self.dtype)
            return elements.as_strided(self.shape, self.stride(), first // self.element_size())
        if self.late_value is None:
            self.late_value = self.read_original(why)
        return self.late_value

    def refuse_other_shape(self, operation: str) -> None:
        """Raise: this object has one shape, and one place in the checkpoint."""
        message = f"a loader gives {self.late_stored.name!r} another shape or memory in place ({operation})"
        raise NotImplementedError(f'{message}: load with "deferred": false in the extra config')

    def given_away(self, why: str) -> torch.Tensor:
        """Return the elements in the memory that this tensor and its views have from now on."""
        self.late_memory.change(why)
        return self.read_now(why)

    def read_original(self, why: str) -> torch.Tensor:
        """Read the elements as they are stored, in the layout of this tensor."""
        with torch_private_names.without_dispatch_modes(torch), normal_tensors(), torch.no_grad():
            made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            self.late_stored.recorder.read_alone(Copy(made, self), why)
            if made.stride() == self.stride():
                return made
            once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in self.stride())
            laid_out = torch.empty(_reach(self.late_form), dtype=self.dtype, device=self.device)
            laid_out.as_strided(made[once].shape, self.stride()).copy_(made[once])
            return laid_out.as_strided(self.shape, self.stride())

    def late_view_of(self, operation: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Return a view, or several; None if it cannot be recorded. The layers of a model are alike: forms are kept."""
        if self.late_view is not self.late_form or self.late_value is not None or named:
            return self._new_view_of(operation, arguments, named)
        kept = self.late_stored.recorder.forms
        key = id(self.late_form), id(operation), *[tuple(each) if type(each) is list else each for each in arguments]
        found = kept.get(key)
        if found is None or torch.is_inference_mode_enabled():
            views = self._new_view_of(operation, arguments, named)
            if views is not None:
                forms = [each.late_form for each in ([views] if type(views) is Deferred else views)]
                makers = [(form, torch_private_names.tensor_without_bytes(torch, Deferred, form)) for form in forms]
                kept[key] = self.late_form, makers, type(views) is Deferred  # a kept form keeps its number
            return views
        _, makers, is_single = found
        stored, casts, memory = self.late_stored, self.late_casts, self.late_memory
        made = [make(device=casts.device)._begun(stored, form, form, casts, memory) for form, make in makers]
        return made[0] if is_single else made

    def _new_view_of(self, operation: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Make a view by running the operation on meta tensors."""
        try:
            forms = operation(self.late_form, *arguments, **named)
        except (RuntimeError, NotImplementedError):
            return None  # and the operation raises on the elements, too
        if not _are_views(forms, self.late_form):
            return None
        if any(each.is_conj() or each.is_neg() for each in all_tensors([forms])):
            return None  # no byte of it is as it is stored
        try:
            if self.late_view is self.late_form:
                views = forms
            elif operation in _BY_ADDRESS:  # in the memory of the copy, not of the stored tensor
                views = None
            else:
                views = operation(self.late_view, *arguments, **named)
        except (RuntimeError, NotImplementedError):
            views = None
        is_recast = bool(self.late_casts.dtypes) and _first(forms).dtype != self.dtype
        if views is None or is_recast or not _are_views(views, self.late_view):
            self.late_memory.change(str(operation))  # a view of the copy that is none of the stored tensor
            return operation(self.read_now(str(operation)), *arguments, **named)
        values = None if self.late_value is None else operation(self.late_value, *arguments, **named)
        if not isinstance(forms, (list, tuple)):
            return self._late_like(forms, views, values)
        each = zip(forms, views, values or [None] * len(forms), strict=True)
        return [self._late_like(*one) for one in each]

    def _late_like(self, form: torch.Tensor, view: torch.Tensor, value: torch.Tensor | None) -> Deferred:
        made = Deferred.late_made(self.late_stored, form, view, self.late_casts, self.late_memory)
        made.late_value = value
        return made

    def late_copy_of(self, operation: Any, named: dict[str, Any]) -> Deferred | None:
        """Return a copy, in another dtype, layout or on another device; None if it cannot be recorded."""
        if named.get("layout") not in (None, torch.strided) or self.is_read:
            return None
        of_meta = {key: value for key, value in named.items() if key in ("dtype", "memory_format")}
        form = operation(self.late_form, **of_meta)
        dtypes = self.late_casts.dtypes if form.dtype == self.dtype else (*self.late_casts.dtypes, form.dtype)
        casts = Casts(dtypes, torch.device(named.get("device") or self.device))
        return Deferred.late_made(self.late_stored, form, self.late_view, casts, None)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch describes its function as a method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record what can be recorded; for any other operation, read the elements."""
        del types
        named = kwargs or {}
        kind = kind_of(func)
        if kind == "composite":
            return func.decompose(*args, **named)
        first = args[0] if args else None
        if isinstance(first, cls):
            if kind == "reshaping":
                first.refuse_other_shape(str(func))
            made = first._late_result(func, kind, args[1:], named)
            if made is not None:
                return made
        elif kind == "copy_" and not args[1].is_read and is_plain(first):
            return args[1].late_stored.recorder.copy_at_once(first, args[1])
        for position, name in torch_private_names.written_arguments(func):
            for each in all_tensors([args[position] if position < len(args) else named.get(name)]):
                if isinstance(each, cls):
                    each.late_memory.change(str(func))
        why = str(func)
        return func(*read_all(args, why), **{key: read_all(value, why) for key, value in named.items()})

    def _late_result(self, func: Any, kind: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        if kind == "view":
            return self.late_view_of(func, arguments, named)
        if kind == "clone":
            return self.late_copy_of(func, named)
        if func is _IS_PINNED:
            return False
        if func in _OF_SHAPE:
            form = torch.empty_like(self.late_form)
            return func(form, *arguments, **{"dtype": self.dtype, "device": self.device, **named})
        return None

    # These methods reach no `__torch_dispatch__`: without a method here, they raise, see no bytes or end the process.

    def numpy(self, *, force: bool = False) -> Any:
        """As of a tensor with data."""
        return self.given_away("numpy").numpy(force=force)

    def tolist(self) -> Any:
        """As of a tensor with data."""
        return self.read_now("tolist").tolist()

    def data_ptr(self) -> int:
        """As of a tensor with data."""
        return self.given_away("data_ptr").data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """As of a tensor with data."""
        return self.given_away("untyped_storage").untyped_storage()

    def share_memory_(self) -> Any:
        """As of a tensor with data."""
        return self.given_away("share_memory_").share_memory_()  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.read_now("pickle").__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.read_now("deepcopy"), memo)

    def __dlpack__(self, **named: Any) -> Any:
        return self.given_away("dlpack").__dlpack__(**named)

    def __format__(self, form: str) -> str:
        return format(self.read_now("format"), form)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's argument does not matter
        return f"<Deferred {self.late_stored.name!r} {self.dtype} {list(self.shape)}>"


def _first(result: Any) -> torch.Tensor:
    first: torch.Tensor = result[0] if isinstance(result, (list, tuple)) else result
    return first


def _are_views(result: Any, form: torch.Tensor) -> bool:
    """Whether results of an operation on a meta tensor share its memory; in inference mode, `reshape` may copy."""
    if isinstance(result, (list, tuple)) and not result:
        return True
    of_result, own = _first(result).untyped_storage(), form.untyped_storage()
    return torch_private_names.address_of_storage(of_result) == torch_private_names.address_of_storage(own)


def _reach(form: torch.Tensor) -> int:
    """Return the number of elements from the first to the last of a tensor, in its memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(form.shape, form.stride(), strict=True))


def is_plain(tensor: Any) -> bool:
    """Whether a tensor has its bytes, and is one of torch's own or of a subclass that leaves operations as they are."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_conj() or tensor.is_neg())


def read_all(value: Any, why: str) -> Any:
    """Replace deferred tensors by their elements, in lists, too."""
    if isinstance(value, Deferred):
        return value.read_now(why)
    return type(value)(read_all(each, why) for each in value) if isinstance(value, (list, tuple)) else value


def expanded(deferred: Deferred, shape: Sequence[int]) -> Any:
    """Return a view of another shape, as ``copy_`` makes it; None if the shape does not fit."""
    return deferred.late_view_of(_aten.expand.default, (list(shape),), {})


def all_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments of an operation."""
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from all_tensors(each)
