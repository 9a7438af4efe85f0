"""torch's part in copies to CUDA devices: allocating the memory, and the stream that copies wait for.

The engine copies into tensors of torch's allocator, on a stream of its own. The allocator reuses memory in the order of
the stream on which it was allocated, so every copy waits for the work of this stream.
"""

from __future__ import annotations

from typing import Any

from streamer import _native
from streamer.core.tensors.inference_mode import normal_tensors

__all__ = ["TorchCuda", "probe"]


def probe(torch: Any, device: Any) -> None:
    """Use a device once, so that torch raises if it cannot use it."""
    torch.empty(0, device=device)


class TorchCuda:
    """CUDA devices by number, as torch counts them.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_nvidia = torch.version.cuda is not None  # what torch calls cuda may be ROCm
        self._opened: dict[int, _native.ReadError | None] = {}

    def device_of(self, tensor: Any) -> Any:
        """Return the ``torch.device`` of a tensor."""
        return tensor.device

    def index_of(self, device: Any) -> int:
        """Return the number of a ``torch.device`` of type cuda; if it has none, the number of the current device."""
        return int(self._torch.cuda.current_device() if device.index is None else device.index)

    def is_filled_by_engine(self, index: int) -> bool:
        """Say whether the engine can copy to the device by itself; `refusal` returns why not."""
        return self._is_nvidia and self.refusal(index) is None

    def refusal(self, index: int) -> _native.ReadError | None:
        """Return the driver's error from opening the device in the engine; None if there is none."""
        if index not in self._opened:
            self._opened[index] = _native.cuda_open(index)
        return self._opened[index]

    def empty(self, shape: tuple[int, ...], dtype: Any, index: int) -> Any:
        """Return a tensor with undefined content, allocated on the current stream."""
        with normal_tensors():
            return self._torch.empty(shape, dtype=dtype, device=self._torch.device("cuda", index))

    def stream(self, index: int) -> int:
        """Return the handle of the device's current stream; 0 is the legacy default stream."""
        return int(self._torch.cuda.current_stream(index).cuda_stream)

    def hand_over(self, tensor: Any, index: int, stream: int) -> None:
        """Record the current stream in the allocator if the tensor was allocated on another stream."""
        if self.stream(index) != stream:
            tensor.record_stream(self._torch.cuda.current_stream(index))
