"""Finds out whether fsspec's own configuration sets options for a scheme; imports fsspec only if it has one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from streamer.core.secrets.environment import set_variables

__all__ = ["are_configured"]

_FOLDER = "~/.config/fsspec"  # FSSPEC_CONFIG_DIR names another one


def are_configured(*schemes: str, variables: Iterable[str] | None = None) -> bool:
    """Say whether a variable or a file sets options for one of the schemes.

    Args:
        schemes: As in URLs: ``"http"``.
        variables: Names of the variables that are set; None for those of this process.
    """
    names = set_variables() if variables is None else variables
    has_variables = any(name.startswith("FSSPEC_") for name in names)
    if not has_variables and "fsspec" not in sys.modules and not os.path.isdir(os.path.expanduser(_FOLDER)):
        return False
    from fsspec.config import conf  # noqa: PLC0415  the import takes 6 ms

    return any(conf.get(scheme) for scheme in schemes)
