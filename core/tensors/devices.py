"""Decides which device each tensor goes to, and what copies it: the engine for CUDA devices, torch for all others.

The choice is one device for all, or a mapping of names and prefixes, as in accelerate.

Refuses a device that the framework does not have or cannot use here, in one line (torch's own message may list sixty
backends), and a mapping that leaves a wanted tensor without a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from streamer import _native
from streamer.core.errors import OptionError, UnknownDeviceError

if TYPE_CHECKING:
    from streamer.core.tensors.torch_copies import TorchCuda, TorchStaging

HINT = "Give device='cpu', or another that torch has here"
LONGEST_REASON = 200  # characters
SHOWN_CHARACTERS = 80

_KINDS = "Give 'cpu', 'cuda', 'cuda:0', a torch.device, or a mapping of names to these"
_BUILD = "Give device='cpu', or install a torch that was built for CUDA"
# What users write, and torch's name for it. The words of accelerate are values of its device_map argument.
_NAMES = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "mps": "mps", "xpu": "xpu"}
_ACCELERATE_WORDS = ("auto", "balanced", "balanced_low_0", "sequential")


def refused_device(torch: Any, device: Any, error: Exception, refusal: _native.ReadError | None) -> UnknownDeviceError:
    """Return the error for a device that torch cannot use."""
    shown = shown_device(device)
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        return UnknownDeviceError(f"device cannot be {shown}", hint=_KINDS)
    kind = str(device).partition(":")[0]
    if not kind.isdecimal() and not _is_kind(torch, kind):
        return UnknownDeviceError(f"torch knows no device {shown}", hint=_hint_for_unknown(kind))
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, ImportError) or "only available for these backends" in text or len(text) > LONGEST_REASON:
        text = f"torch {torch.__version__} has no {kind} on this machine"
    return UnknownDeviceError(
        f"torch cannot use device {shown}: {text}" + (f"; {refusal.detail}" if refusal else ""),
        hint=_BUILD if "not compiled with CUDA" in text else HINT,
        code=refusal.storage_code if refusal else None,
    )


def shown_device(device: Any) -> str:
    """Return the device as the caller wrote it; for an object that cannot be a device, return only its type."""
    if type(device).__name__ == "device":  # a torch.device
        return repr(str(device))
    is_plain = device is None or isinstance(device, (str, int, float))
    return repr(device)[:SHOWN_CHARACTERS] if is_plain else f"a {type(device).__name__}"


def _is_kind(torch: Any, kind: str) -> bool:
    try:
        torch.device(kind)
    except Exception:
        return False
    return True


def _hint_for_unknown(kind: str) -> str:
    if kind in _ACCELERATE_WORDS:
        return "That is a word of accelerate's device_map: give a device, or a mapping of names to devices"
    near = get_close_matches(kind.lower(), _NAMES, n=1)
    if not near:
        return _KINDS
    meant = _NAMES[near[0]]
    return f"Did you mean {meant!r}?" + (f" One of several is {meant}:0" if meant != "cpu" else "")


LONGEST_COMPARED = 300  # characters: difflib is quadratic in the length


class Placement:
    """The ``device`` argument of a load.

    Example:
        >>> Placement({"": "cpu", "model.layers.0": "cuda:1"}).of("model.layers.0.mlp.weight")
        'cuda:1'
    """

    def __init__(self, device: Any) -> None:
        self._by_key: Mapping[str, Any] = device if isinstance(device, Mapping) else {"": device}
        if not self._by_key:
            raise OptionError("the mapping of names to devices is empty", hint='Give a device for "", all others')
        if wrong := [key for key in self._by_key if not isinstance(key, str)]:
            raise OptionError(f"a mapping of names to devices has the key {wrong[0]!r}, which is no name")

    @property
    def devices(self) -> list[Any]:
        """The devices of all keys, in order."""
        return list(self._by_key.values())

    @property
    def leaves_none_out(self) -> bool:
        """Whether every possible name has a device."""
        return "" in self._by_key

    def of(self, name: str) -> Any:
        """Return the device of a tensor."""
        key = name
        while key and key not in self._by_key:
            key = key.rpartition(".")[0]
        if key not in self._by_key:
            near = get_close_matches(name[:LONGEST_COMPARED], self._by_key, n=1, cutoff=0.5)
            meant = f". Near: {near[0][:80]!r}" if near else ""
            raise OptionError(
                f"the mapping of names to devices has none for tensor {name[:80]!r}",
                hint=f'Add a key for its module, or "" for all others{meant}',
            )
        return self._by_key[key]


class Devices(Protocol):
    """The devices of one call."""

    @property
    def cuda(self) -> TorchCuda:
        """The CUDA devices; use it only if `engine_device` or `engine_device_of` returned one."""

    @property
    def staging(self) -> TorchStaging:
        """Copies by torch; use it only if `engine_device` returned the engine's CONSUMERS_HOST."""

    def device(self, name: str) -> Any:
        """Return the device of a tensor, as an object of the library."""

    def engine_device(self, name: str) -> int:
        """Return where the engine shall put the bytes, as `streamer.core.engine.plan.Item.device`."""

    def engine_device_of(self, tensor: Any) -> int:
        """Return `engine_device` of an existing tensor."""

    def path(self, name: str) -> str:
        """Return how a tensor reaches its device.

        "ring": through pinned memory. "torch" or "jax": copied by that library. "": it stays in this machine's memory.
        """

    def path_of(self, tensor: Any) -> str:
        """Return `path` of an existing tensor."""

    def moved(self, tensor: Any, name: str) -> Any:
        """Return the tensor on its device, copied from this machine's memory."""

    def remarks(self) -> list[str]:
        """Return the reasons why the engine does not fill a CUDA device."""


class TorchDevices:
    """Any device of torch, or a mapping of names to devices; see `Placement`."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._placement = Placement(device)
        self._devices_by_key = {_key(device): _usable(torch, device) for device in self._placement.devices}
        self._is_all_cpu = all(device.type == "cpu" for device in self._devices_by_key.values())

    @cached_property
    def cuda(self) -> TorchCuda:
        from streamer.core.tensors.torch_copies import TorchCuda  # noqa: PLC0415 (the cpu needs no copies)

        return TorchCuda(self._torch)

    @cached_property
    def staging(self) -> TorchStaging:
        from streamer.core.tensors.torch_copies import TorchStaging  # noqa: PLC0415 (as above)

        return TorchStaging(self._torch)

    def engine_device(self, name: str) -> int:
        if self._is_all_cpu and self._placement.leaves_none_out:
            return _native.HOST
        device = self.device(name)
        number = self._engine_device(device)
        is_staged = number == _native.HOST and device.type != "cpu" and self.staging.can_copy_to(device)
        return _native.CONSUMERS_HOST if is_staged else number

    def engine_device_of(self, tensor: Any) -> int:
        return self._engine_device(self.cuda.device_of(tensor))

    def path(self, name: str) -> str:
        return "" if self._is_all_cpu else self._path(self.device(name))

    def path_of(self, tensor: Any) -> str:
        return self._path(self.cuda.device_of(tensor))

    def moved(self, tensor: Any, name: str) -> Any:
        return tensor if self._is_all_cpu else tensor.to(self.device(name))

    def remarks(self) -> list[str]:
        cuda = {self.cuda.index_of(device) for device in self._devices_by_key.values() if device.type == "cuda"}
        refusals = [(index, self.cuda.refusal(index)) for index in sorted(cuda)]
        return [f"cuda:{index} is filled by torch: {refusal.detail}" for index, refusal in refusals if refusal]

    def device(self, name: str) -> Any:
        return self._devices_by_key[_key(self._placement.of(name))]

    def _path(self, device: Any) -> str:
        if device.type == "cpu":
            return ""
        return "torch" if self._engine_device(device) == _native.HOST else "ring"

    def _engine_device(self, device: Any) -> int:
        if device.type != "cuda":
            return _native.HOST
        index = self.cuda.index_of(device)
        return index if self.cuda.is_filled_by_engine(index) else _native.HOST


class HostOnly:
    """Host memory only, for numpy."""

    def __init__(self, device: Any) -> None:
        if str(device) != "cpu":
            hint = "Use framework=\"pt\", or device='cpu'"
            raise UnknownDeviceError(f"numpy arrays live on the cpu, not on {shown_device(device)}", hint=hint)

    @property
    def cuda(self) -> TorchCuda:
        raise AssertionError("numpy has no devices")

    @property
    def staging(self) -> TorchStaging:
        raise AssertionError("numpy has no devices")

    def device(self, name: str) -> Any:
        return "cpu"

    def engine_device(self, name: str) -> int:
        return _native.HOST

    def engine_device_of(self, tensor: Any) -> int:
        return _native.HOST

    def path(self, name: str) -> str:
        return ""

    def path_of(self, tensor: Any) -> str:
        return ""

    def moved(self, tensor: Any, name: str) -> Any:
        return tensor

    def remarks(self) -> list[str]:
        return []


def _usable(torch: Any, device: Any) -> Any:
    try:
        torch_device = torch.device(device)
        if torch_device.type != "cpu":
            from streamer.core.tensors import torch_copies  # noqa: PLC0415 (as above)

            torch_copies.probe(torch, torch_device)
    except Exception as error:  # torch raises RuntimeError, AssertionError, ValueError by device kind
        raise refused_device(torch, device, error, _cuda_refusal(device)) from error
    if torch_device.type == "meta":
        raise UnknownDeviceError("tensors on the meta device hold no bytes to load", hint=HINT)
    return torch_device


def _cuda_refusal(device: Any) -> _native.ReadError | None:
    """Return the driver's error for a CUDA device that torch cannot use; None for other kinds of devices."""
    kind, _, index = str(device).partition(":")
    return _native.cuda_open(int(index) if index.isdecimal() else 0) if kind == "cuda" else None


def _key(device: Any) -> str:
    """Return a key for a device as the caller wrote it: 0 and "0" may be different devices to torch."""
    return f"{type(device).__name__}:{device}"
