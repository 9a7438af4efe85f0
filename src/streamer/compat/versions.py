"""Which versions of other libraries were tried: any other is left as it is."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile

from streamer.core.options.switches import is_on

__all__ = ["SWITCH", "may_be_patched"]

SWITCH = "STREAMER_DISABLE_PATCHES"

_log = logging.getLogger("streamer")


def may_be_patched(library: str, tried: tuple[str, str]) -> bool:
    """Whether names of a library may be replaced; one that was not tried is a line in the log.

    Args:
        library: Its distribution.
        tried: The first version tried, and the first one after it that was not.
    """
    if is_on(SWITCH):
        _log.info("%s is left as it is: %s=1", library, SWITCH)
        return False
    try:
        found = version(library)
    except PackageNotFoundError:
        return False
    oldest, newest = (_number(each) for each in tried)
    if oldest <= _number(found) < newest:
        return True
    _log.warning(
        "%s %s is left as it is: streamer was tried with %s and newer, before %s. %s=1 ends this message",
        library,
        found,
        *tried,
        SWITCH,
    )
    return False


def _number(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:3]
    return tuple(int("".join(takewhile(str.isdigit, part)) or 0) for part in parts)
