"""Explains in one line why torch cannot use a device: torch's own message may list sixty backends."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from streamer.core.errors import UnknownDeviceError

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["HINT", "refused_device", "shown_device"]

HINT = "Give device='cpu', or another that torch has here"
LONGEST_REASON = 200  # characters
SHOWN_CHARACTERS = 80

_KINDS = "Give 'cpu', 'cuda', 'cuda:0', a torch.device, or a mapping of names to these"
_BUILD = "Give device='cpu', or install a torch that was built for CUDA"
# What users write, and torch's name for it. The words of accelerate are values of its device_map argument.
_NAMES = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "nvidia": "cuda", "rocm": "cuda", "mps": "mps", "xpu": "xpu"}
_ACCELERATE_WORDS = ("auto", "balanced", "balanced_low_0", "sequential")


def refused_device(torch: Any, device: Any, error: Exception, refusal: _native.ReadError | None) -> UnknownDeviceError:
    """Return the error for a device that torch cannot use.

    Args:
        torch: The module.
        device: The device as the caller wrote it.
        error: The exception of torch.
        refusal: The error of NVIDIA's driver, for a CUDA device.
    """
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
