"""torch's part in copies to CUDA devices: the memory they fill, and the work they wait for.

The engine copies into tensors of torch's own allocator, on a stream of its own. The allocator reuses memory in the
order of the stream it was allocated on, so every copy into it waits for that stream's work.
"""

from __future__ import annotations

from typing import Any

from streamer import _native
from streamer.core.tensors.inference_mode import normal_tensors

__all__ = ["TorchCuda", "probe"]


def probe(torch: Any, device: Any) -> None:
    """Use a device once, so that torch raises if it cannot."""
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
        """The ``torch.device`` a tensor is on."""
        return tensor.device

    def index_of(self, device: Any) -> int:
        """The number of a ``torch.device`` of type cuda; without one it is the current device."""
        return int(self._torch.cuda.current_device() if device.index is None else device.index)

    def is_filled_by_engine(self, index: int) -> bool:
        """True where the engine can copy to the device by itself; `refusal` says why not."""
        return self._is_nvidia and self.refusal(index) is None

    def refusal(self, index: int) -> _native.ReadError | None:
        """The driver's error when the engine opens the device; None where it can."""
        if index not in self._opened:
            self._opened[index] = _native.cuda_open(index)
        return self._opened[index]

    def empty(self, shape: tuple[int, ...], dtype: Any, index: int) -> Any:
        """A tensor with undefined content, in the allocator's memory for the current stream."""
        with normal_tensors():
            return self._torch.empty(shape, dtype=dtype, device=self._torch.device("cuda", index))

    def stream(self, index: int) -> int:
        """The handle of the device's current stream; 0 is the legacy default one."""
        return int(self._torch.cuda.current_stream(index).cuda_stream)

    def hand_over(self, tensor: Any, index: int, stream: int) -> None:
        """Tell the allocator when a tensor allocated on one stream is handed out on another."""
        if self.stream(index) != stream:
            tensor.record_stream(self._torch.cuda.current_stream(index))
