"""Reads environment variables that switch a feature on or off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

from streamer.core.quoting import printable
from streamer.core.secrets.environment import variable

__all__ = ["ON", "is_on"]

ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

_log = logging.getLogger("streamer")


def is_on(name: str, environment: Mapping[str, str] | None = None, *, default: bool = False) -> bool:
    """Say whether a variable switches a feature on; an unknown word counts as on, with a warning.

    Args:
        name: Name of the variable.
        environment: Variables; None for those of this process.
        default: Result if the variable is not set.

    Example:
        >>> [is_on("A", {"A": text}) for text in ("1", "True", "yes", "0", "off", "")]
        [True, True, True, False, False, False]
    """
    text = variable(name, environment)
    if text is None:
        return default
    if text.strip().lower() not in (*ON, *OFF):
        _warn(name, text)
    return text.strip().lower() not in OFF


@lru_cache(maxsize=64)  # so that each is logged once
def _warn(name: str, text: str) -> None:
    words = ", ".join((*ON, *OFF[1:]))
    _log.warning("%s=%s is taken as on: it is none of %s", name, printable(text[:20]), words)
