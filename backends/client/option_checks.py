"""Checks storage options and URLs before a request: types, verified TLS, versions only of objects. Pure.

A wrong type would make a library fail. Guarantees: an error names the option and its type, and no frame holds its
value, which may be a secret. Options of aiohttp, also nested ones, cannot switch the verification of certificates off.
Only an object has a version: the files of a folder would be read unpinned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamer.backends.private_names.storage_clients import connector_verifies_tls
from streamer.core.errors import OptionError
from streamer.core.secrets.environment import is_blank

if TYPE_CHECKING:
    import aiohttp

_SWITCHES = ("verify", "ssl", "verify_ssl")


class Kind(NamedTuple):
    """The allowed values of an option, in words and as types; None is always allowed."""

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
    """Check the options that `kinds` names, also inside of mappings.

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
        elif kind is CA_FILE and is_blank(options[name]):  # some libraries take a blank path for "do not verify"
            raise OptionError(f"The option {label} is blank", hint=f"Leave it out, or give {words}")


def is_sendable(text: str) -> bool:
    """Say whether a text can be encoded; one with lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def timeout_of(value: Any, name: str) -> aiohttp.ClientTimeout | None:
    """Return seconds or a time-out of aiohttp as a time-out of aiohttp; None for None."""
    if value is None:
        return None
    import aiohttp  # noqa: PLC0415  its import takes longer than a small load, and few set a time-out

    if isinstance(value, aiohttp.ClientTimeout):
        return value
    try:
        return aiohttp.ClientTimeout(total=float(value))
    except (TypeError, ValueError):
        raise OptionError(f"The option {name} must be seconds or aiohttp.ClientTimeout") from None


def _type_name(value: Any) -> str:
    return "a mapping" if isinstance(value, Mapping) else type(value).__name__  # our own classes wrap the user's


def check_tls_is_verified(options: Mapping[str, Any]) -> None:
    """Check the arguments of an HTTP file system, and its ``client_kwargs``."""
    client = options.get("client_kwargs")
    connector = client.get("connector") if isinstance(client, Mapping) else None
    if any(options.get(name) is False for name in _SWITCHES) or not connector_verifies_tls(connector):
        raise OptionError(
            "Unverified TLS is refused",
            hint="Name the CA instead: storage_options={'verify': '/path/ca.pem'}, or SSL_CERT_FILE=/path/ca.pem",
        )
