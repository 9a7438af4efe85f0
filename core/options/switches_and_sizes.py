"""The values of our environment variables: switches, numbers of bytes; and a warning of variables that nothing reads.

Numbers of bytes have a unit: ``"1GB"`` is 10^9, ``"512MiB"`` (or Kubernetes' ``"512Mi"``) is 512 * 2^20.

Variables that begin like ours but are not read (``STREAMER_FILE_THREAD``) are not refused, because another program may
have variables with this prefix. The warning appears once per process and names the most similar variable. Variables
that Kubernetes sets for a service called ``streamer`` are ignored. Their values are not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache

from streamer.core.log import OwnLogger
from streamer.core.quoting import printable
from streamer.core.secrets.environment import variable

ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

_log = OwnLogger()

_SIZE = r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kKMGT])(i?))?B?(?:/s)?\s*"
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

PREFIX = "STREAMER_"
OTHERS = (
    *(
        "DISABLED_PLUGINS",
        "DISABLE_PATCHES",
        "KEY",
        "LORA_URL",
        "PEERS_TLS_DIR",
        "PEERS_ZONE",
        "PEERS_TOKEN",
        "PEERS_TOKEN_FILE",
        "PLUGINS",
        "PROGRESS",
        "TAKE_OVER_RUNAI",
        "VERIFY",
    ),
    "LIBRARY",  # read by the library of Run:ai
)
NEAREST = 0.55  # least similarity: MEMORY_LIMIT is like MEMORY_LIMIT_BYTES, HOST is like no name
_OF_KUBERNETES = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def is_on(name: str, environment: Mapping[str, str] | None = None, *, default: bool = False) -> bool:
    """Say whether a variable switches a feature on; an unknown word counts as on, with a warning.

    Example:
        >>> [is_on("A", {"A": text}) for text in ("1", "True", "yes", "0", "off", "")]
        [True, True, True, False, False, False]
    """
    text = variable(name, environment)
    if text is None:
        return default
    if text.strip().lower() not in (*ON, *OFF):
        _warn_of_value(name, text)
    return text.strip().lower() not in OFF


@lru_cache(maxsize=64)  # so that each word is logged once
def _warn_of_value(name: str, text: str) -> None:
    words = ", ".join((*ON, *OFF[1:]))
    _log.warning("%s=%s counts as on: it is none of %s", name, printable(text[:20]), words)


def parsed_bytes(text: str) -> int | None:
    """Return the number of bytes; None if the text is not a size.

    Example:
        >>> [parsed_bytes(text) for text in ("4096", "1GB", "512 MiB", "1.5Ki", "2MB/s", "1Gb", "0.1B", "a lot")]
        [4096, 1000000000, 536870912, 1536, 2000000, None, None, None]
    """
    match = re.fullmatch(_SIZE, text, re.ASCII)
    if match is None:
        return None
    number, letter, is_binary = match.groups()
    size = Decimal(number) * (1024 if is_binary else 1000) ** _POWERS[(letter or "").upper()]
    return int(size) if size == int(size) else None


def warn_of_typos(options: Iterable[str], environment: Mapping[str, str] | None = None) -> None:
    """Log a warning for each variable that has our prefix but is not one of our variables."""
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
