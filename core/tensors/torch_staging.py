"""Copies to accelerators that only torch can reach: from torch's pinned memory, on a stream beside the current one.

So they overlap with reading and with the consumer, whatever the accelerator (ROCm, XPU, ...), as long as torch offers
streams and events for it under ``torch.<type>``. Not checked on any such device; see docs/gpu.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamer.core.tensors.inference_mode import normal_tensors

__all__ = ["StagedCopy", "TorchStaging", "can_stage"]


def can_stage(torch: Any, device: Any) -> bool:
    """Whether torch has streams and events for this kind of device, so that copies overlap."""
    module = getattr(torch, device.type, None)
    return all(hasattr(module, name) for name in ("Stream", "Event", "current_stream", "stream"))


class StagedCopy(NamedTuple):
    """A copy under way: its tensor is whole once the event fired."""

    tensor: Any
    event: Any
    source: Any  # kept until then


class TorchStaging:
    """The copies of one load.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._streams: dict[str, Any] = {}

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor on this machine, in pinned memory where torch has that for the accelerator."""
        try:
            return self._torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # some accelerators share this machine's memory and pin nothing
            return self._torch.empty(shape, dtype=dtype, device="cpu")

    def start(self, source: Any, device: Any) -> StagedCopy:
        """Copy to the device behind the work that its current stream has by now."""
        module = getattr(self._torch, device.type)
        stream = self._streams.get(str(device))
        if stream is None:
            stream = self._streams[str(device)] = module.Stream(device=device)
        with normal_tensors():
            tensor = self._torch.empty(source.shape, dtype=source.dtype, device=device)
        stream.wait_stream(module.current_stream(device))  # its memory may be in use there
        with module.stream(stream):
            tensor.copy_(source, non_blocking=True)
            event = module.Event()
            event.record(stream)
        tensor.record_stream(stream)  # it may be dropped before it is whole
        return StagedCopy(tensor, event, source)

    def finish(self, copy: StagedCopy) -> Any:
        """Wait for a copy; its tensor may then be used on any stream."""
        copy.event.synchronize()
        return copy.tensor
