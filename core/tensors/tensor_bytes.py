"""The bytes of tensors as a safetensors file holds them: little-endian, row after row, without a copy where possible.

Guarantees: the returned memory is the tensor's own. It is a copy of this one tensor only if the tensor is not
contiguous, on another device, of another byte order, or an array of unpacked 4-bit values. Refuses tensors that have no
memory of their own (meta, fake, DTensor, sparse), masks, and dtypes that the format lacks.
"""

from __future__ import annotations

import sys
from typing import Any

from streamer.core.errors import UnsupportedDtypeError, UsageError
from streamer.core.format.dtypes import TORCH_DTYPES
from streamer.core.format.header_writer import TensorLayout
from streamer.core.imported import if_imported
from streamer.core.quoting import quoted
from streamer.core.tensors.numpy_framework import ML_DTYPES, NUMPY_DTYPES

_OF_TORCH = {name: dtype for dtype, name in TORCH_DTYPES.items()}
_OF_ML_DTYPES = {name: dtype for dtype, name in ML_DTYPES.items()}
_OF_NUMPY = {name: dtype for dtype, name in NUMPY_DTYPES.items()}


def is_torch_tensor(value: Any) -> bool:
    """Say whether a value is a ``torch.Tensor``; does not import torch."""
    torch = if_imported("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Say whether a value is a ``numpy.ndarray``; does not import numpy."""
    numpy = if_imported("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def layout_of(name: str, tensor: Any) -> TensorLayout:
    """Describe a torch tensor or a numpy array as a header does."""
    if is_torch_tensor(tensor):
        _check_memory(name, tensor)
        dtype = dtype_name(name, tensor.dtype)
        return TensorLayout(name, dtype, _shape_of(name, tensor, dtype), tensor.numel() * tensor.element_size())
    check_no_mask(name, tensor)
    dtype = dtype_name(name, tensor.dtype)
    if dtype == "F4" and tensor.size % 2:
        raise UsageError(f"tensor {quoted(name)} has an odd number of 4-bit values, and a byte holds two")
    return TensorLayout(name, dtype, tuple(tensor.shape), tensor.nbytes // (2 if dtype == "F4" else 1))


def check_no_mask(name: str, array: Any) -> None:
    """Refuse an array with a mask; does not import numpy."""
    if is_array(array) and isinstance(array, sys.modules["numpy"].ma.MaskedArray):
        hint = "Save its filled(value); or its .data, and its .mask under another name"
        raise UsageError(f"array {quoted(name)} has a mask, which the format cannot hold", hint=hint)


def dtype_name(name: str, dtype: Any) -> str:
    """Return the format's name of a dtype of torch or numpy."""
    is_of_torch = str(dtype).startswith("torch.")
    found = _OF_TORCH.get(str(dtype).removeprefix("torch.")) if is_of_torch else _dtype_of_array(dtype)
    if found is None:
        hint = f"The format has {', '.join(_OF_TORCH)}"
        raise UnsupportedDtypeError(f"tensor {quoted(name)} has dtype {dtype}, which the format lacks", hint=hint)
    return found


def bytes_of(tensor: Any) -> memoryview:
    """Return the bytes of a tensor that `layout_of` has accepted; the view keeps the memory alive."""
    if not is_torch_tensor(tensor):
        return _bytes_of_array(tensor)
    return memoryview(flat_bytes(tensor.detach().cpu()).numpy())


def flat_bytes(tensor: Any) -> Any:
    """Return the values that a tensor of torch shows as one row of bytes, on its device."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # reshape keeps the stride of a single element, which view refuses
    return flat.view(sys.modules["torch"].uint8)


def _bytes_of_array(array: Any) -> memoryview:
    import numpy as np  # noqa: PLC0415  already imported: `array` is one of its arrays

    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view("u1")
    if _dtype_of_array(array.dtype) == "F4":  # ml_dtypes stores each value in a byte
        plain = (plain[0::2] & 0xF) | (plain[1::2] << 4)
    return memoryview(plain.data)


def _dtype_of_array(dtype: Any) -> str | None:
    named = _OF_NUMPY.get("?" if dtype.kind == "b" else dtype.newbyteorder("<").str.lstrip("|"))
    return named or _OF_ML_DTYPES.get(dtype.name)


def _shape_of(name: str, tensor: Any, dtype: str) -> tuple[int, ...]:
    if dtype != "F4":
        return tuple(tensor.shape)
    if not tensor.dim():
        raise UsageError(f"tensor {quoted(name)} of 4-bit values has no dimension to unpack", hint="Use reshape(1)")
    return (*tensor.shape[:-1], tensor.shape[-1] * 2)


def _check_memory(name: str, tensor: Any) -> None:
    torch = sys.modules["torch"]
    if torch.nn.parameter.is_lazy(tensor):
        hint = "Call the module once, so that it learns its shapes"
        raise UsageError(f"tensor {quoted(name)} is of a lazy module: it has no shape and no values yet", hint=hint)
    if tensor.is_nested:
        hint = "Save the tensors of its unbind(), or to_padded_tensor()"
        raise UsageError(f"tensor {quoted(name)} is nested, which the format does not allow", hint=hint)
    if tensor.layout != torch.strided:
        raise UsageError(f"tensor {quoted(name)} is sparse, which the format does not allow", hint="Use to_dense()")
    if tensor.is_meta:
        hint = "Load its weights first, or leave it out"
        raise UsageError(f"tensor {quoted(name)} is on the meta device: it has no values", hint=hint)
    if hasattr(tensor, "full_tensor"):
        hint = "Call it on all ranks of a process group, with group="
        raise UsageError(f"tensor {quoted(name)} is a DTensor: this process has a part of it", hint=hint)
    if tensor.numel() and not _has_memory(tensor):
        kind = type(tensor).__name__
        hint = "Give the tensors that it is made of, or its dequantized values"
        raise UsageError(f"tensor {quoted(name)} is a {kind} without memory of its own", hint=hint)


def _has_memory(tensor: Any) -> bool:
    try:
        return bool(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError, Warning):  # fake tensors, and classes that wrap others
        return False
