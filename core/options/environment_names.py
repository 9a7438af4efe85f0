"""Warns of variables of the environment that nobody reads because of a typo in their name: ``STREAMER_FILE_THREAD``.

They are not refused, as another program may have variables that begin so: only a name that is nearly one of ours is
warned of, once in a process. Their values are not looked at.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache

from streamer.core.quoting import printable

__all__ = ["OTHERS", "PREFIX", "warn_of_typos"]

PREFIX = "STREAMER_"
OTHERS = (
    *("DISABLED_PLUGINS", "DISABLE_PATCHES", "PLUGINS", "PROGRESS", "TAKE_OVER_RUNAI", "VERIFY"),
    "LIBRARY",  # Run:ai's
)
NEAREST = 0.85  # one wrong letter of seven

_log = logging.getLogger("streamer")


def warn_of_typos(options: Iterable[str], environment: Mapping[str, str] | None = None) -> None:
    """Log a warning for each variable whose name is nearly that of an option.

    Args:
        options: Names of the options.
        environment: None for this process's.
    """
    names = os.environ if environment is None else environment
    known = frozenset({*(name.upper() for name in options), *OTHERS})
    for name in [each for each in names if each.startswith(PREFIX)]:
        _warn(name.removeprefix(PREFIX), known)


@lru_cache(maxsize=128)  # warned of already
def _warn(name: str, known: frozenset[str]) -> None:
    near = [] if name in known else get_close_matches(name[:100].upper(), known, n=1, cutoff=NEAREST)
    if near:
        _log.warning("%s%s is not read: did you mean %s%s?", PREFIX, printable(name[:100]), PREFIX, near[0])
