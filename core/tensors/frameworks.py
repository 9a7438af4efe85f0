"""Tensors of torch, numpy and JAX, each over memory of its own; and their types, which depend on ``framework=``.

A library is imported only when its first tensor, device or dtype is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from streamer import _native
from streamer.core.discovery.entry_points import refuse_accidental
from streamer.core.errors import OptionError, UnsupportedDtypeError
from streamer.core.format.dtypes import TORCH_DTYPES
from streamer.core.format.header_entries import TensorEntry
from streamer.core.tensors.devices import Devices, TorchDevices

if TYPE_CHECKING:
    from streamer.core.format.header_entries import TensorEntry

LARGEST_ITEM_BYTES = 16
LARGEST_STRIDE = 2**63 - 1


def check_addressable(entry: TensorEntry) -> None:
    """Check that strides fit 64 signed bits: in an empty tensor, one dimension is zero and the others may be huge."""
    if 0 not in entry.shape:
        return  # the file bounds the size of a tensor that is not empty
    strides = prod(max(1, size) for size in entry.shape)
    if strides * LARGEST_ITEM_BYTES > LARGEST_STRIDE:
        raise unsupported(entry, "the other dimensions of this empty tensor are too large for torch and numpy")


def unsupported(entry: TensorEntry, reason: str, hint: str | None = None) -> UnsupportedDtypeError:
    """Return the error for a tensor that the framework cannot hold."""
    return UnsupportedDtypeError(f"tensor {entry.name[:80]!r} is {entry.dtype}: {reason}", hint=hint)


AUTO = "auto"  # a value of ``dtype=``, as in transformers
# A cast between these dtypes keeps the meaning of the values. Smaller dtypes are quantized, and need their scales.
_CAST = ("F64", "F32", "F16", "BF16")
# The type code and the bits of DLPack. Newer codes of DLPack are absent: only some versions of torch accept them.
_DLPACK_TYPES = {
    "BOOL": (6, 8),
    "U8": (1, 8),
    "I8": (0, 8),
    "I16": (0, 16),
    "F16": (2, 16),
    "BF16": (4, 16),
    "I32": (0, 32),
    "F32": (2, 32),
    "C64": (5, 64),
    "F64": (2, 64),
    "I64": (0, 64),
}
_OTHER_NAMES = {
    **dict.fromkeys(("bf16", "bfloat", "bloat16", "brain", "b16"), "bfloat16"),
    **dict.fromkeys(("f16", "fp16", "float_16"), "float16"),
    **dict.fromkeys(("f32", "fp32", "float_32"), "float32"),
    **dict.fromkeys(("f64", "fp64", "float_64"), "float64"),
}
_ALIASES = {"pt": "pt", "torch": "pt", "pytorch": "pt", "np": "np", "numpy": "np", "jax": "jax", "flax": "jax"}


class DtypesByName(dict[str, Any]):
    """The dtype that each tensor is cast to, by its name, in place of one dtype for all."""


class Framework(Protocol):
    """Makes tensors of one library on its devices."""

    @property
    def devices(self) -> Devices:
        """The devices to which tensors go."""

    def dtype(self, entry: TensorEntry) -> Any:
        """Return the library's dtype of this entry.

        Raises:
            UnsupportedDtypeError: the installed library has none.
        """

    def shape(self, entry: TensorEntry) -> tuple[int, ...]:
        """Return the shape of the tensor: packed dtypes hold two values per element of the last dimension."""

    def tensors(self, memories: Sequence[_native.Memory | None], entries: Sequence[TensorEntry]) -> list[Any]:
        """Return a tensor for each entry, which owns its memory; an empty one if the memory is None."""

    def final_dtype(self, entry: TensorEntry) -> Any:
        """Return the dtype of the tensor after the cast."""

    def can_cast(self, entry: TensorEntry, dtype: Any) -> bool:
        """Say whether the tensor can be cast to this dtype."""

    def cast(self, tensor: Any, entry: TensorEntry) -> Any:
        """Return the tensor in its final dtype, on its device."""


class TorchFramework:
    """torch tensors on any device of torch."""

    def __init__(self, device: Any, cast_to: Any, folders: Iterable[str] = ()) -> None:
        if "torch" not in sys.modules:
            refuse_accidental("torch.backends", "torch", folders)
        import torch  # noqa: PLC0415  takes seconds: only when a tensor is needed

        self._torch = torch
        self._dtypes: dict[str, Any] = {}
        self._casts = cast_to if isinstance(cast_to, DtypesByName) else None
        self._cast_to = None if self._casts is not None else _cast_dtype(torch, cast_to)
        self._castable = {getattr(torch, TORCH_DTYPES[name]) for name in _CAST}
        self.devices = TorchDevices(torch, device)

    def dtype(self, entry: TensorEntry) -> Any:
        dtype = self._dtypes.get(entry.dtype)
        if dtype is None:
            dtype = getattr(self._torch, TORCH_DTYPES[entry.dtype], None)
            if dtype is None:
                raise unsupported(entry, f"torch {self._torch.__version__} has no such dtype")
            self._dtypes[entry.dtype] = dtype
        return dtype

    def shape(self, entry: TensorEntry) -> tuple[int, ...]:
        check_addressable(entry)
        if entry.dtype != "F4" or not entry.shape:
            return entry.shape
        if entry.shape[-1] % 2:
            raise unsupported(entry, "torch packs two values into an element, and the last dimension is odd")
        return (*entry.shape[:-1], entry.shape[-1] // 2)

    def tensors(self, memories: Sequence[_native.Memory | None], entries: Sequence[TensorEntry]) -> list[Any]:
        shapes, types = [entry.shape for entry in entries], [_DLPACK_TYPES.get(entry.dtype) for entry in entries]
        made, capsules = self._torch.utils.dlpack.from_dlpack, _native.to_dlpack(list(memories), shapes, types)
        return [
            self._without_dlpack(memory, entry) if capsule is None else made(capsule)
            for memory, entry, capsule in zip(memories, entries, capsules, strict=True)
        ]

    def _without_dlpack(self, memory: _native.Memory | None, entry: TensorEntry) -> Any:
        dtype = self.dtype(entry)
        shape = self.shape(entry)
        if memory is None:
            return self._torch.empty(shape, dtype=dtype, device="cpu")
        # Resized in place: a view is a second tensor object, and 100 000 of them cost more than reading small tensors.
        return self._torch.frombuffer(memory, dtype=dtype).resize_(shape)

    def final_dtype(self, entry: TensorEntry) -> Any:
        dtype = self.dtype(entry)
        cast_to = self._cast_to if self._casts is None else self._casts.get(entry.name)
        return cast_to if cast_to is not None and self.can_cast(entry, cast_to) else dtype

    def can_cast(self, entry: TensorEntry, dtype: Any) -> bool:
        return entry.dtype in _CAST and dtype in self._castable

    def cast(self, tensor: Any, entry: TensorEntry) -> Any:
        is_cast = self._cast_to is not None or self._casts is not None
        return tensor.to(self.final_dtype(entry)) if is_cast else tensor


def framework_of(
    name: str, device: Any = "cpu", cast_to: Any = None, folders: Iterable[str] = (), *, fills_targets: bool = False
) -> Framework:
    """Return the framework of this name, for this device, with a cast to this dtype unless it is None.

    Args:
        name: The name as users write it.
        device: As for `streamer.load`.
        cast_to: A dtype, a `DtypesByName`, or None; ``"auto"`` (the checkpoint's own dtypes) means the same as None.
        folders: Folders of the checkpoints to load: importing the library must not run code from them.
        fills_targets: Whether the caller's own tensors shall be filled.
    """
    kind = _ALIASES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise OptionError(f"unknown framework {str(name)[:80]!r}", hint=f"Known: {', '.join(sorted(_ALIASES))}")
    if isinstance(cast_to, str) and cast_to == AUTO:
        cast_to = None
    if kind == "pt":
        return TorchFramework(device, cast_to, folders)
    if cast_to is not None:
        raise OptionError("dtype= casts torch tensors only", hint='Use framework="pt", or the array\'s astype')
    if kind == "np":
        from streamer.core.tensors.numpy_framework import NumpyFramework  # noqa: PLC0415 (as needed)

        return NumpyFramework(device)
    if fills_targets:
        raise OptionError("arrays of jax cannot be filled", hint='Use load(framework="jax"), which makes new arrays')
    from streamer.core.tensors.jax_framework import JaxFramework  # noqa: PLC0415 (as needed)

    return JaxFramework(device, folders)


def _cast_dtype(torch: Any, dtype: Any) -> Any:
    possible = {getattr(torch, TORCH_DTYPES[name]) for name in _CAST}
    chosen = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None or any(chosen is each for each in possible):
        return chosen
    names = ", ".join(TORCH_DTYPES[name] for name in _CAST)
    text = str(dtype)[:80]
    name = text.lower().removeprefix("torch.")
    meant = name if name in names.split(", ") else _OTHER_NAMES.get(name)
    hint = f"Did you mean {meant!r}?" if meant else 'Leave it out and cast afterwards, or load_into(dtype="target")'
    raise OptionError(f"dtype is one of {names} or {AUTO}, not {text!r}", hint=hint)


TorchName: TypeAlias = Literal["pt", "torch", "pytorch"]
NumpyName: TypeAlias = Literal["np", "numpy"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    TensorT = TypeVar("TensorT", default=Any)  # the default allows a generic class without a parameter as a type
else:
    from typing import TypeVar

    TensorT = TypeVar("TensorT")
