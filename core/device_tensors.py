"""The tensors of one load that the engine fills on CUDA devices: allocated when it asks for them, not before.

So a load holds no more of a device than its memory limit plus what its consumer keeps. What the device has no room for
is a `DeviceError` with the bytes asked for and those free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer import _native
from streamer.core.errors import DeviceError

if TYPE_CHECKING:
    from streamer.core.frameworks import Framework
    from streamer.core.header import TensorEntry
    from streamer.core.torch_cuda import TorchCuda

__all__ = ["DeviceTensors", "Provision"]


class Provision(NamedTuple):
    """Memory for some items, on one device: the arguments of the engine's ``provide``.

    Attributes:
        device: Its number.
        stream: Copies wait for what this stream was given by now.
        items: Of the plan.
        addresses: Where each of them goes.
    """

    device: int
    stream: int
    items: list[int]
    addresses: list[int]


class _Allocated(NamedTuple):
    tensor: Any
    stream: int


class DeviceTensors:
    """See the module's docstring.

    Args:
        entries: Of all items of the plan.
        places: As `streamer.core.plan.Item.place`, of the same.
        framework: Gives their shapes and dtypes.
        cuda: Gives their memory.
    """

    def __init__(
        self, entries: Sequence[TensorEntry], places: Sequence[int], framework: Framework, cuda: TorchCuda
    ) -> None:
        self._entries = entries
        self._places = places
        self._framework = framework
        self._cuda = cuda
        self._allocated: dict[int, _Allocated] = {}

    def streams(self) -> dict[int, int]:
        """The current stream of every device of the load."""
        return {place - 1: self._cuda.stream(place - 1) for place in set(self._places) if place}

    def allocate(self, items: Iterable[int]) -> list[Provision]:
        """Allocate the tensors of these items.

        Raises:
            DeviceError: a device has no room.
        """
        made: dict[int, Provision] = {}
        for item in items:
            device = self._places[item] - 1
            if device not in made:
                made[device] = Provision(device, self._cuda.stream(device), [], [])
            tensor = self._empty(item, device)
            self._allocated[item] = _Allocated(tensor, made[device].stream)
            made[device].items.append(item)
            made[device].addresses.append(tensor.data_ptr())
        return list(made.values())

    def take(self, item: int) -> Any:
        """Hand over the tensor of a finished item."""
        device = self._places[item] - 1
        found = self._allocated.pop(item, None)
        if found is None:  # an empty tensor, which the engine never asks for
            return self._empty(item, device)
        self._cuda.hand_over(found.tensor, device, found.stream)
        return found.tensor

    def free_all(self) -> None:
        """Free what was not taken. Only when the engine has stopped."""
        self._allocated.clear()

    def _empty(self, item: int, device: int) -> Any:
        entry = self._entries[item]
        dtype, shape = self._framework.dtype(entry), self._framework.shape(entry)
        try:
            return self._cuda.empty(shape, dtype, device)
        except Exception as error:  # torch.OutOfMemoryError since 2.5, RuntimeError of every other trouble
            asked, free = entry.end - entry.begin, _native.cuda_free_bytes(device)
            is_full = "out of memory" in str(error).lower()
            told = f"{asked} bytes asked for" + (f", {free} free" if free is not None else "")
            raise DeviceError(
                f"cuda:{device} could not take tensor {entry.name[:80]!r} ({told})",
                hint="Load fewer tensors (names=) or spread them over devices (device={...})" if is_full else None,
                code="CUDA_ERROR_OUT_OF_MEMORY" if is_full else type(error).__name__,
                requested_bytes=asked,
                free_bytes=free,
            ) from error
