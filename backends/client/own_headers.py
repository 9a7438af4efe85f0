"""The user's headers, from options of aiohttp, as plain text that any client can send. Pure.

Refuses headers that would break reading by ranges, and line ends in headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer.backends.client.header_faults import fault_of
from streamer.core.errors import OptionError

__all__ = ["check_headers", "own_headers"]

_CONDITIONS = frozenset({"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"})
_FORBIDDEN = _CONDITIONS | {"host", "range"}


# These functions keep header values out of local names, because a traceback shows the values of local names.


def own_headers(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the option ``headers``, by names in lower case, without ``Accept-Encoding``.

    ``Accept-Encoding`` is always ``identity``, because a range of a compressed body holds other bytes.

    Raises:
        OptionError: it is no mapping.
    """
    try:
        named = ((str(name).lower(), str(value)) for name, value in dict(source.get("headers") or {}).items())
        return {name: value for name, value in named if name != "accept-encoding"}
    except (TypeError, ValueError):
        raise OptionError(
            "headers must be a mapping of names to values", hint="As {'Authorization': 'Bearer …'}"
        ) from None


def check_headers(headers: Mapping[str, str]) -> None:
    """Check headers with names in lower case.

    Raises:
        OptionError: a header cannot be sent, or cannot be combined with a range.
    """
    for name in headers:
        if name in _FORBIDDEN:
            raise OptionError(f"headers cannot hold {name!r}: reading by ranges sets it itself")
        if (fault := fault_of(name, headers[name])) is not None:
            raise OptionError(fault, hint="Headers are plain text: strip what a file or a shell has put around them")
