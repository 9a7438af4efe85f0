"""Tensors of torch and numpy over memory that belongs to them alone.

torch is imported when the first tensor, device or dtype is asked for, never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from streamer.core.errors import OptionError, UnknownDeviceError, UnsupportedDtypeError

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.header import TensorEntry

__all__ = ["Framework", "framework_of"]

_TORCH_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_NUMPY_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "C64": "<c8",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}
_ALIASES = {"pt": "pt", "torch": "pt", "pytorch": "pt", "np": "np", "numpy": "np"}


class Framework(Protocol):
    """How to make tensors of one library on one device."""

    def dtype(self, entry: TensorEntry) -> Any:
        """The library's dtype of this entry.

        Raises:
            UnsupportedDtypeError: the installed library has none.
        """

    def shape(self, entry: TensorEntry) -> tuple[int, ...]:
        """The shape its tensor will have: packed dtypes hold two values per element of the last dimension."""

    def tensor(self, memory: _native.Memory | None, entry: TensorEntry) -> Any:
        """A tensor that owns `memory`, or an empty one."""

    def on_device(self, tensor: Any) -> Any:
        """The tensor on the device asked for."""


class TorchFramework:
    """torch tensors on any device torch knows."""

    def __init__(self, device: Any) -> None:
        import torch  # noqa: PLC0415  costs seconds: only when a tensor is wanted

        self._torch = torch
        self._dtypes: dict[str, Any] = {}
        self._device = _torch_device(torch, device)
        self._is_cpu = self._device.type == "cpu"

    def dtype(self, entry: TensorEntry) -> Any:
        known = self._dtypes.get(entry.dtype)
        if known is None:
            known = getattr(self._torch, _TORCH_DTYPES[entry.dtype], None)
            if known is None:
                raise _unsupported(entry, f"torch {self._torch.__version__} has no such dtype")
            self._dtypes[entry.dtype] = known
        return known

    def shape(self, entry: TensorEntry) -> tuple[int, ...]:
        if entry.dtype != "F4" or not entry.shape:
            return entry.shape
        if entry.shape[-1] % 2:
            raise _unsupported(entry, "torch packs two values into an element, and the last dimension is odd")
        return (*entry.shape[:-1], entry.shape[-1] // 2)

    def tensor(self, memory: _native.Memory | None, entry: TensorEntry) -> Any:
        dtype = self.dtype(entry)
        shape = self.shape(entry)
        if memory is None:
            return self._torch.empty(shape, dtype=dtype)
        # In place: a view would be a second tensor object, which for 100 000 small tensors costs more than reading.
        return self._torch.frombuffer(memory, dtype=dtype).resize_(shape)

    def on_device(self, tensor: Any) -> Any:
        return tensor if self._is_cpu else tensor.to(self._device)


class NumpyFramework:
    """numpy arrays; only the dtypes numpy has."""

    def __init__(self, device: Any) -> None:
        import numpy as np  # noqa: PLC0415  as for torch

        if str(device) != "cpu":
            raise UnknownDeviceError(f"numpy arrays live on the cpu, not on {device!r}", hint='Use framework="pt"')
        self._np = np

    def dtype(self, entry: TensorEntry) -> Any:
        name = _NUMPY_DTYPES.get(entry.dtype)
        if name is None:
            raise _unsupported(entry, "numpy has no such dtype", hint='Use framework="pt"')
        return self._np.dtype(name)

    def shape(self, entry: TensorEntry) -> tuple[int, ...]:
        return entry.shape

    def tensor(self, memory: _native.Memory | None, entry: TensorEntry) -> Any:
        dtype = self.dtype(entry)
        if memory is None:
            return self._np.empty(entry.shape, dtype=dtype)
        return self._np.frombuffer(memoryview(memory), dtype=dtype).reshape(entry.shape)

    def on_device(self, tensor: Any) -> Any:
        return tensor


def framework_of(name: str, device: Any = "cpu") -> Framework:
    """Give the framework of this name, on this device.

    Raises:
        OptionError: unknown framework.
        UnknownDeviceError: torch does not know the device, or it is not available.
    """
    kind = _ALIASES.get(name)
    if kind is None:
        raise OptionError(f"unknown framework {name!r}", hint=f"Known: {', '.join(sorted(_ALIASES))}")
    return TorchFramework(device) if kind == "pt" else NumpyFramework(device)


def _torch_device(torch: Any, device: Any) -> Any:
    hint = "Give a device torch lists here, for instance 'cpu', 'cuda' or 'cuda:0'"
    try:
        known = torch.device(device)
        if known.type != "cpu":
            torch.empty(0, device=known)
    except Exception as error:  # torch raises RuntimeError, AssertionError, ValueError by device kind
        raise UnknownDeviceError(f"torch cannot use device {device!r}: {_first_line(error)}", hint=hint) from error
    if known.type == "meta":
        raise UnknownDeviceError("tensors on the meta device hold no bytes to load", hint=hint)
    return known


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _unsupported(entry: TensorEntry, reason: str, hint: str | None = None) -> UnsupportedDtypeError:
    return UnsupportedDtypeError(f"tensor {entry.name[:80]!r} is {entry.dtype}: {reason}", hint=hint)
