"""Which way tensors took to their devices, for the report of a load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamer import _native

__all__ = ["device_path", "gpudirect_remarks"]


def device_path(ways: Iterable[str], stats: Mapping[str, int]) -> str:
    """Join the ways that tensors were meant to take, corrected by what the engine's counters say.

    Args:
        ways: ``"ring"``, ``"torch"``, or ``""`` for what stays on this machine.
        stats: Of `ReadSession.stats`.

    Example:
        >>> device_path(["ring", ""], {"bytes_straight": 5, "bytes_landed": 5})
        'gpudirect'
    """
    taken = set(ways) - {""}
    if stats["bytes_straight"] > 0:
        taken.add("gpudirect")
    if stats["bytes_straight"] == stats["bytes_landed"] > 0:
        taken.discard("ring")
    return "+".join(sorted(taken))


def gpudirect_remarks(path: str, *, is_asked: bool) -> list[str]:
    """Say why GPUDirect Storage was not used although it was asked for."""
    if not is_asked or "ring" not in path or "gpudirect" in path:
        return []
    reason = _native.cuda_gpudirect_problem() or "no file was read past the page cache, or none that it supports"
    return [f"GPUDirect Storage was not used: {reason}"]
