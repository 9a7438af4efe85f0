"""Warns of environment variables that begin like ours but are not read: ``STREAMER_FILE_THREAD``.

They are not refused, because another program may have variables with this prefix. The warning appears once per process
and names the most similar variable. Variables that Kubernetes sets for a service called ``streamer`` are ignored.
Values are not read.
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
NEAREST = 0.55  # least similarity: MEMORY_LIMIT is like MEMORY_LIMIT_BYTES, HOST is like none
_OF_KUBERNETES = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

_log = logging.getLogger("streamer")


def warn_of_typos(options: Iterable[str], environment: Mapping[str, str] | None = None) -> None:
    """Log a warning for each variable with our prefix that is none of ours.

    Args:
        options: Names of the options.
        environment: Variables; None for those of this process.
    """
    names = os.environ if environment is None else environment
    supported = frozenset({*(name.upper() for name in options), *OTHERS})
    for name in [each for each in names if each.startswith(PREFIX)]:
        _warn(name.removeprefix(PREFIX), supported)


@lru_cache(maxsize=128)  # so that each name is logged once
def _warn(name: str, supported: frozenset[str]) -> None:
    if name in supported or _OF_KUBERNETES.fullmatch(name):
        return
    near = get_close_matches(name[:100].upper(), supported, n=1, cutoff=NEAREST)
    meant = f": did you mean {PREFIX}{near[0]}?" if near else " by streamer"
    _log.warning("%s%s is not read%s", PREFIX, printable(name[:100]), meant)
