"""The tensors to save: tensors in memory, and tensors of other checkpoints, which are read while they are saved.

Guarantees: names, kinds, dtypes and shared memory are checked before a byte is written. A tensor of another checkpoint
is in memory once, and only while its bytes are sent. If it is larger than `MOST_READ_BYTES`, it is read by rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streamer.core.checkpoint.tensor_slice import TensorSlice
from streamer.core.errors import UsageError
from streamer.core.format.dtypes import byte_length
from streamer.core.format.header_writer import TensorLayout
from streamer.core.quoting import quoted
from streamer.core.tensors.shared_memory import refuse_shared
from streamer.core.tensors.tensor_bytes import bytes_of, dtype_name, is_array, is_torch_tensor, layout_of

__all__ = ["MOST_READ_BYTES", "SavedTensors"]

MOST_READ_BYTES = 256 << 20  # enough for full speed; smaller tensors are read whole, as rows have no digest


class SavedTensors:
    """Named tensors, in the order in which they are saved.

    Args:
        tensors: Tensors of torch or numpy, or instances of `TensorSlice`, by name.

    Attributes:
        layouts: The tensors as a header describes them.

    Raises:
        UsageError: a name is no string, a value is no tensor, or tensors share memory.
        UnsupportedDtypeError: the format lacks a dtype.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = {_name(each): tensors[each] for each in tensors}
        self.layouts = [_layout(name, tensor) for name, tensor in self._tensors.items()]
        refuse_shared({name: each for name, each in self._tensors.items() if not isinstance(each, TensorSlice)})

    def held_bytes(self, layout: TensorLayout) -> int:
        """Return the bytes that `pieces` allocates beside the tensors' own memory; 0 if it yields only views."""
        tensor = self._tensors[layout.name]
        if isinstance(tensor, TensorSlice):
            return min(layout.size_bytes, MOST_READ_BYTES)
        if is_torch_tensor(tensor):
            return 0 if tensor.device.type == "cpu" and tensor.is_contiguous() else layout.size_bytes
        return 0 if tensor.flags.c_contiguous else layout.size_bytes

    def pieces(self, layout: TensorLayout) -> Iterator[memoryview]:
        """Yield the bytes of one tensor, in one or more pieces."""
        tensor = self._tensors[layout.name]
        if not layout.size_bytes:
            return
        if isinstance(tensor, TensorSlice):
            for rows in _rows(tensor, layout):
                yield bytes_of(rows)
        else:
            yield bytes_of(tensor)


def _rows(tensor: TensorSlice[Any], layout: TensorLayout) -> Iterator[Any]:
    count = tensor.shape[0] if tensor.shape else 1
    if layout.size_bytes <= MOST_READ_BYTES or count == 1:
        yield tensor[...]
        return
    step = max(1, count * MOST_READ_BYTES // layout.size_bytes)
    for first in range(0, count, step):
        yield tensor[first : first + step]


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise UsageError(f"the name of a tensor is a text, not {quoted(name)}")
    return name


def _layout(name: str, tensor: Any) -> TensorLayout:
    if isinstance(tensor, TensorSlice):
        return _layout_of_slice(name, tensor)
    if not (is_torch_tensor(tensor) or is_array(tensor)):
        hint = "Save torch tensors, numpy arrays, or tensors of streamer.open; leave everything else out"
        raise UsageError(f"{quoted(name)} is no tensor but {type(tensor).__name__}", hint=hint)
    return layout_of(name, tensor)


def _layout_of_slice(name: str, tensor: TensorSlice[Any]) -> TensorLayout:
    """Describe a tensor that is not read yet, after the cast that was requested from `streamer.open`."""
    dtype = dtype_name(name, tensor.dtype)
    shape = tuple(tensor.get_shape())
    return TensorLayout(name, dtype, shape, byte_length(shape, dtype))
