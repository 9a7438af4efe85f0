"""Describes how tensors were copied to their devices, for the report of a load."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from streamer import _native

__all__ = ["device_path", "gpudirect_remarks"]

FIRST_CUFILE_CODE = 5000  # CUFILEOP_BASE_ERR: smaller codes are values of errno


def device_path(planned: Iterable[str], stats: Mapping[str, int]) -> str:
    """Join the planned paths of the tensors, corrected by the engine's counters.

    Args:
        planned: ``"ring"``, ``"torch"``, ``"jax"``, or ``""`` for tensors that stay on this machine.
        stats: The counters of `ReadSession.stats`.

    Example:
        >>> device_path(["ring", ""], {"gpudirect_bytes": 5, "bytes_landed": 5})
        'gpudirect'
    """
    taken = set(planned) - {""}
    if stats["gpudirect_bytes"] > 0:
        taken.add("gpudirect")
    if stats["gpudirect_bytes"] == stats["bytes_landed"] > 0:
        taken.discard("ring")
    return "+".join(sorted(taken))


def gpudirect_remarks(path: str, stats: Mapping[str, int], *, is_asked: bool) -> list[str]:
    """Return a remark why GPUDirect Storage was not used although the caller enabled it."""
    if not is_asked or "ring" not in path or "gpudirect" in path:
        return []
    reason = _native.cuda_gpudirect_problem() or _refusal(stats["gpudirect_refusal"])
    return [f"GPUDirect Storage was not used: {reason or 'no file was read past the page cache'}"]


def _refusal(code: int) -> str:
    if code >= FIRST_CUFILE_CODE:
        return f"libcufile refused a file with its code {code} (see CUfileOpError in NVIDIA's cufile.h)"
    return f"libcufile failed to read a file: {os.strerror(code)}" if code else ""
