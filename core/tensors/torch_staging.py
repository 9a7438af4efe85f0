"""Copies to accelerators that only torch can reach: from torch's pinned memory, on a separate stream.

So copies overlap with reading and with the consumer, on every accelerator (ROCm, XPU, ...) for which torch offers
streams and events under ``torch.<type>``. Not tested on any such device; see docs/gpu.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamer.core.tensors.inference_mode import normal_tensors

__all__ = ["StagedCopy", "TorchStaging", "can_stage"]


def can_stage(torch: Any, device: Any) -> bool:
    """Say whether torch has streams and events for this kind of device, so that copies overlap."""
    module = getattr(torch, device.type, None)
    return all(hasattr(module, name) for name in ("Stream", "Event", "current_stream", "stream"))


class StagedCopy(NamedTuple):
    """A copy in progress: its tensor is complete once the event fired."""

    tensor: Any
    event: Any
    source: Any  # kept alive until then


class TorchStaging:
    """The copies of one load.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._streams: dict[str, Any] = {}

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
