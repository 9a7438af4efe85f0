"""numpy arrays, with the dtypes of numpy, and those of ml_dtypes if it is installed.

ml_dtypes stores a 4-bit value in a byte. A file packs two values into a byte, the first into its low half, as torch
does. So arrays of F4 are unpacked, and take twice the bytes of the file. numpy is imported when a framework is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamer.core.tensors.devices import HostOnly
from streamer.core.tensors.frameworks import check_addressable, unsupported

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.format.header_entries import TensorEntry

NUMPY_DTYPES = {
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
ML_DTYPES = {
    "F4": "float4_e2m1fn",
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


class NumpyFramework:
    """numpy arrays; see `Framework`."""

    def __init__(self, device: Any) -> None:
        import numpy as np  # noqa: PLC0415  only when an array is needed

        self.devices = HostOnly(device)
        self._np = np
        self._dtypes: dict[str, Any] = {}

    def dtype(self, entry: TensorEntry) -> Any:
        if entry.dtype not in self._dtypes:
            name = NUMPY_DTYPES.get(entry.dtype)
            self._dtypes[entry.dtype] = self._np.dtype(name) if name else self._ml_dtype(entry)
        return self._dtypes[entry.dtype]

    def shape(self, entry: TensorEntry) -> tuple[int, ...]:
        check_addressable(entry)
        return entry.shape

    def tensors(self, memories: Sequence[_native.Memory | None], entries: Sequence[TensorEntry]) -> list[Any]:
        return [self._array(*each) for each in zip(memories, entries, strict=True)]

    def _array(self, memory: _native.Memory | None, entry: TensorEntry) -> Any:
        dtype = self.dtype(entry)
        if memory is None:
            return self._np.empty(entry.shape, dtype=dtype)
        if entry.dtype == "F4":
            return self._unpacked(memoryview(memory)).view(dtype).reshape(entry.shape)
        return self._np.frombuffer(memoryview(memory), dtype=dtype).reshape(entry.shape)

    def final_dtype(self, entry: TensorEntry) -> Any:
        return self.dtype(entry)

    def can_cast(self, entry: TensorEntry, dtype: Any) -> bool:
        return False

    def cast(self, tensor: Any, entry: TensorEntry) -> Any:
        return tensor

    def _unpacked(self, memory: memoryview) -> Any:
        packed = self._np.frombuffer(memory, dtype="u1")
        halves = self._np.empty((packed.size, 2), dtype="u1")
        self._np.bitwise_and(packed, 0xF, out=halves[:, 0])
        self._np.right_shift(packed, 4, out=halves[:, 1])
        return halves.reshape(-1)

    def _ml_dtype(self, entry: TensorEntry) -> Any:
        name = ML_DTYPES.get(entry.dtype)
        if name is None:
            raise unsupported(entry, "numpy has no such dtype", hint='Use framework="pt"')
        try:
            import ml_dtypes  # noqa: PLC0415  seldom needed
        except ImportError:
            hint = 'pip install ml_dtypes, or use framework="pt"'
            raise unsupported(entry, "numpy has this dtype only with ml_dtypes", hint=hint) from None
        if not hasattr(ml_dtypes, name):
            raise unsupported(entry, f"ml_dtypes {ml_dtypes.__version__} has no {name}", hint='Use framework="pt"')
        return self._np.dtype(getattr(ml_dtypes, name))
