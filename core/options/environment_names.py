"""Warns of variables of the environment that look like ours and that nobody reads: ``STREAMER_FILE_THREAD``.

They are not refused, as another program may have variables that begin so; each is warned of once in a process, with
the name that is nearest to it. Those that Kubernetes sets for a service called ``streamer`` are passed over. Values are
not looked at.
"""

from __future__ import annotations

import logging
import os
import re
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
NEAREST = 0.55  # MEMORY_LIMIT is MEMORY_LIMIT_BYTES, and HOST is none
_OF_KUBERNETES = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

_log = logging.getLogger("streamer")


def warn_of_typos(options: Iterable[str], environment: Mapping[str, str] | None = None) -> None:
    """Log a warning for each variable that begins as ours do, and is none of them.

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
    if name in known or _OF_KUBERNETES.fullmatch(name):
        return
    near = get_close_matches(name[:100].upper(), known, n=1, cutoff=NEAREST)
    meant = f": did you mean {PREFIX}{near[0]}?" if near else " by streamer"
    _log.warning("%s%s is not read%s", PREFIX, printable(name[:100]), meant)
