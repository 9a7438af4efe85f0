"""Arrays of JAX: on the CPU, JAX shares numpy's memory; to any other device or sharding, JAX copies it.

JAX shares memory that begins at a multiple of 64 bytes, and copies other memory, which small tensors may have. DLPack
would share all memory, but numpy cannot export BF16, FP8 and F4 through it. So `jax.device_put` is called with
``may_alias``. JAX and its devices start when a framework is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from streamer import _native
from streamer.core.discovery.entry_points import refuse_accidental
from streamer.core.errors import OptionError, UnknownDeviceError
from streamer.core.tensors.devices import HostOnly, Placement, shown_device
from streamer.core.tensors.frameworks import unsupported
from streamer.core.tensors.numpy_framework import NumpyFramework

if TYPE_CHECKING:
    from streamer.core.format.header_entries import TensorEntry


class JaxFramework(NumpyFramework):
    """Arrays of JAX; see `streamer.core.tensors.frameworks.Framework`.

    Args:
        device: ``"cpu"``, ``"gpu:1"``, a ``jax.Device``, a ``jax.sharding.Sharding``, or a mapping of names to these.
        folders: Folders of the checkpoints to load: importing JAX must not run code from them.
    """

    def __init__(self, device: Any, folders: Iterable[str] = ()) -> None:
        super().__init__("cpu")
        self._jax = _imported(folders)
        self.devices = JaxDevices(self._jax, device)

    def dtype(self, entry: TensorEntry) -> Any:
        if entry.dtype not in self._dtypes:
            dtype = super().dtype(entry)
            try:
                self._check_kept(dtype, entry)
            except BaseException:
                del self._dtypes[entry.dtype]
                raise
        return self._dtypes[entry.dtype]

    def _check_kept(self, dtype: Any, entry: TensorEntry) -> None:
        """Refuse a dtype that JAX lacks, or replaces by a smaller one."""
        try:
            made = self._jax.device_put(self._np.zeros(1, dtype=dtype), self._jax.devices("cpu")[0]).dtype
        except Exception as error:  # the type depends on the version of JAX
            reason = f"jax {self._jax.__version__} has no such dtype"
            raise unsupported(entry, reason, hint='Use framework="np" or "pt"') from error
        if made != dtype:
            hint = 'Call jax.config.update("jax_enable_x64", True) first, or use framework="np"'
            raise unsupported(entry, f"jax would make it {made}", hint=hint)


class JaxDevices(HostOnly):
    """Devices and shardings of JAX; JAX itself copies to them."""

    def __init__(self, jax: Any, device: Any) -> None:
        super().__init__("cpu")
        self._jax = jax
        self._placement = Placement(device)
        self._devices_by_id = {id(each): _device_of(jax, each) for each in self._placement.devices}

    def device(self, name: str) -> Any:
        return self._devices_by_id[id(self._placement.of(name))]

    def path(self, name: str) -> str:
        return "" if _is_cpu(self.device(name)) else "jax"

    def engine_device(self, name: str) -> int:
        self._placement.of(name)  # raises for a tensor without a device, before anything is read
        return _native.HOST

    def moved(self, tensor: Any, name: str) -> Any:
        return self._jax.device_put(tensor, self.device(name), may_alias=True)


def _imported(folders: Iterable[str]) -> Any:
    if "jax" not in sys.modules:
        refuse_accidental("jax_plugins", "jax", folders)
    try:
        import jax  # noqa: PLC0415  takes a second: only when an array is needed
    except ImportError as error:
        raise OptionError('framework="jax" needs jax', hint="pip install jax") from error
    return jax


def _device_of(jax: Any, device: Any) -> Any:
    if isinstance(device, (jax.Device, jax.sharding.Sharding)):
        return device
    kind, colon, number = str(device).partition(":")
    try:
        if not isinstance(device, str) or (colon and not number.isdecimal()):
            raise ValueError("this names no device")
        return jax.devices(kind)[int(number or 0)]
    except (IndexError, RuntimeError, ValueError) as error:
        platforms = ", ".join(sorted({"cpu", *(each.platform for each in jax.devices())}))
        raise UnknownDeviceError(
            f"jax has no device {shown_device(device)}",
            hint=f"Known here: {platforms}, with :1 for the second; or give a jax.Device or a jax.sharding.Sharding",
        ) from error


def _is_cpu(device: Any) -> bool:
    devices = getattr(device, "device_set", None) or {device}
    return all(each.platform == "cpu" for each in devices)
