"""torch's part in copies to devices: for CUDA, memory and the stream that copies wait for; for others, the copies.

The engine copies into tensors of torch's allocator, on a CUDA stream of its own. The allocator reuses memory in the
order of the stream on which it was allocated, so every copy waits for the work of this stream.

Accelerators that only torch can reach (ROCm, XPU, …) get their bytes from torch's pinned memory, on a separate stream,
if torch offers streams and events under ``torch.<type>``. So copies overlap with reading and with the consumer. Not
tested on any such device; see docs/gpu.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamer import _native
from streamer.core.tensors.torch_modes import normal_tensors


def probe(torch: Any, device: Any) -> None:
    """Use a device once, so that torch raises if it cannot use it."""
    torch.empty(0, device=device)


class TorchCuda:
    """CUDA devices by number, as torch counts them."""

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


class StagedCopy(NamedTuple):
    """A copy in progress: its tensor is complete once the event fired."""

    tensor: Any
    event: Any
    source: Any  # kept alive until then


class TorchStaging:
    """The copies of one load."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._streams: dict[str, Any] = {}

    def can_copy_to(self, device: Any) -> bool:
        """Say whether torch has streams and events for this kind of device, so that copies overlap."""
        module = getattr(self._torch, device.type, None)
        return all(hasattr(module, name) for name in ("Stream", "Event", "current_stream", "stream"))

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a tensor in host memory, pinned if torch supports this for the accelerator."""
        try:
            return self._torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # some accelerators share the host's memory, and torch pins nothing for them
            return self._torch.empty(shape, dtype=dtype, device="cpu")

    def start(self, source: Any, device: Any) -> StagedCopy:
        """Start a copy to the device; it waits for the work that is queued on the device's current stream."""
        module = getattr(self._torch, device.type)
        stream = self._streams.get(str(device))
        if stream is None:
            stream = self._streams[str(device)] = module.Stream(device=device)
        with normal_tensors():
            tensor = self._torch.empty(source.shape, dtype=source.dtype, device=device)
        stream.wait_stream(module.current_stream(device))  # earlier work of that stream may still use this memory
        with module.stream(stream):
            tensor.copy_(source, non_blocking=True)
            event = module.Event()
            event.record(stream)
        tensor.record_stream(stream)  # the caller may drop the tensor before the copy ends
        return StagedCopy(tensor, event, source)

    def finish(self, copy: StagedCopy) -> Any:
        """Wait for a copy; return its tensor, which may then be used on any stream."""
        copy.event.synchronize()
        return copy.tensor
