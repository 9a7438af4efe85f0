"""The names of an engine that a load format stands on: all of a list fit, or the format says what to do instead."""

from __future__ import annotations

from collections.abc import Iterable

from streamer.compat.hooks import Hook
from streamer.core.errors import UsageError

__all__ = ["all_fit", "first_misfit", "refusal", "without_url"]


def without_url(engine: str, format_name: str) -> str:
    """Say what happens if a hook does not fit, and which commands work with any version of an engine.

    Args:
        engine: The beginning of its command: ``"vllm serve"``.
        format_name: The load format.
    """
    return f"the load format {format_name!r} cannot be used. Use: python -m streamer pull URI DIR, then {engine} DIR"


def all_fit(hooks: Iterable[Hook]) -> bool:
    """Whether all may be used; each that may not is a line in the log, once per process.

    Raises:
        UsageError: the import of the engine fails.
    """
    fitting = [hook.fits() for hook in hooks]  # all of them, so that each is told
    return all(fitting)


def first_misfit(hooks: Iterable[Hook]) -> str | None:
    """Name the first hook that does not fit, and why; None: all do.

    Raises:
        UsageError: as for `all_fit`.
    """
    reasons = ((hook.label, hook.misfit()) for hook in hooks)
    return next((f"{label}: {reason}" for label, reason in reasons if reason is not None), None)


def refusal(reason: str, engine: str, format_name: str) -> UsageError:
    """Make the error of a load format that cannot be used."""
    hint = f"Use: python -m streamer pull URI DIR, then {engine} DIR. It needs nothing of the engine"
    return UsageError(f"the load format {format_name!r} does not fit this version of the engine: {reason}", hint=hint)
