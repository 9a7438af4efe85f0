"""Storage options of the wrong type, named before a library stumbles over them. Pure.

Guarantees: an error names the option and the type it has, and no frame holds its value, which may be a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import aiohttp

from streamer.core.errors import OptionError

__all__ = [
    "ANY_NAME",
    "CA_FILE",
    "FLAG",
    "MAPPING",
    "NUMBER",
    "TEXT",
    "Kind",
    "Kinds",
    "check_types",
    "is_sendable",
    "timeout_of",
]


class Kind(NamedTuple):
    """What an option may be, in words and as types; None is always allowed."""

    words: str
    types: tuple[type, ...]


TEXT = Kind("text", (str,))
NUMBER = Kind("a number", (int, float))
FLAG = Kind("True or False", (bool,))
MAPPING = Kind("a mapping", (Mapping,))
CA_FILE = Kind("the path of a PEM file with the certificates to trust", (str, os.PathLike, bool))

ANY_NAME = "*"  # stands for all names in a mapping

Kinds: TypeAlias = Mapping[str, "Kind | Kinds"]


def check_types(options: Mapping[str, Any], kinds: Kinds, within: str = "") -> None:
    """Look at the options that `kinds` names, and into those that are mappings there.

    Args:
        options: The options.
        kinds: What each may be.
        within: The option whose value `options` is.

    Raises:
        OptionError: one is something else.

    Example:
        >>> check_types({"endpoint_url": 5}, {"endpoint_url": TEXT})
        Traceback (most recent call last):
        streamer.core.errors.OptionError: The option endpoint_url must be text, not int
    """
    for name in options:
        kind = kinds.get(name) or kinds.get(ANY_NAME)
        if kind is None or options[name] is None:
            continue
        label = f"{within}[{name!r}]" if within else name
        words, types = kind if isinstance(kind, Kind) else MAPPING
        if not isinstance(options[name], types):
            raise OptionError(f"The option {label} must be {words}, not {_type_name(options[name])}")
        if not isinstance(kind, Kind):
            check_types(options[name], kind, label)
        elif isinstance(options[name], str) and not is_sendable(options[name]):
            raise OptionError(f"The option {label} is no text: it holds half a character")


def is_sendable(text: str) -> bool:
    """Tell whether a text has bytes: half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def timeout_of(given: Any, name: str) -> aiohttp.ClientTimeout | None:
    """Read a time-out in seconds, or as aiohttp has it; None where none is given.

    Raises:
        OptionError: it is neither.
    """
    if given is None or isinstance(given, aiohttp.ClientTimeout):
        return given
    try:
        return aiohttp.ClientTimeout(total=float(given))
    except (TypeError, ValueError):
        raise OptionError(f"The option {name} must be seconds or aiohttp.ClientTimeout") from None


def _type_name(value: Any) -> str:
    return "a mapping" if isinstance(value, Mapping) else type(value).__name__  # ours hide theirs
