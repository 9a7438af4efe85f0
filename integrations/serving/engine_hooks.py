"""The names of an engine that a load format needs; if a name does not fit, the error of the format says what to do."""

from __future__ import annotations

from collections.abc import Iterable

from streamer.compat.hooks import Hook
from streamer.core.errors import UsageError

__all__ = ["all_fit", "first_misfit", "refusal", "without_url"]


def without_url(engine: str, format_name: str) -> str:
    """Return the text for a hook that does not fit: the consequence, and the commands that work with any version."""
    return f"the load format {format_name!r} cannot be used. Use: python -m streamer pull URI DIR, then {engine} DIR"


def all_fit(hooks: Iterable[Hook]) -> bool:
    """Whether all hooks fit; each hook that does not is logged, once per process."""
    fitting = [hook.fits() for hook in hooks]  # a list, so that each misfit is logged
    return all(fitting)


def first_misfit(hooks: Iterable[Hook]) -> str | None:
    """Return the first hook that does not fit, with the reason; None if all fit."""
    reasons = ((hook.label, hook.misfit()) for hook in hooks)
    return next((f"{label}: {reason}" for label, reason in reasons if reason is not None), None)


def refusal(reason: str, engine: str, format_name: str) -> UsageError:
    """Return the error of a load format that cannot be used."""
    hint = f"Use: python -m streamer pull URI DIR, then {engine} DIR. This works with any version of the engine"
    return UsageError(f"the load format {format_name!r} does not fit this version of the engine: {reason}", hint=hint)
