"""Parses ``nfs://`` URLs and their options. Pure; the engine parses the same URLs by the same rules.

A path is taken literally. The text after the last ``?`` holds options if it has their form (``name=value``, joined by
``&``); otherwise the ``?`` is part of a name or a glob.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamer.backends.option_names import check_option_names
from streamer.core.errors import OptionError, UsageError
from streamer.core.secrets.hidden_arguments import SecretOptions
from streamer.core.secrets.redact import redact

__all__ = ["NfsUrl"]

SCHEME = "nfs://"
USUAL_VERSION = 4
# Lowest and highest value. The engine sets the options of libnfs that change how it reads; they are not allowed here.
BOUNDS = {
    "version": (3, 4),
    "nfsport": (1, 65535),
    "mountport": (1, 65535),
    "uid": (0, 2**31 - 1),
    "gid": (0, 2**31 - 1),
}

_OPTIONS = re.compile(r"[a-z-]+=[^&]*(&[a-z-]+=[^&]*)*")
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^:@\[\]/]+)(:(?P<port>[0-9]+))?")


@dataclass(frozen=True)
class NfsUrl:
    """One path on one server.

    Attributes:
        host: Name or address of the server, an IPv6 address in brackets.
        path: Absolute path on the server.
        options: Options of the URL and the caller, by name.
    """

    host: str
    path: str
    options: Mapping[str, int]

    @classmethod
    def parse(cls, uri: str, storage_options: Mapping[str, Any]) -> NfsUrl:
        """Parse a URL; `storage_options` win over its query."""
        rest = uri[len(SCHEME) :] if uri[: len(SCHEME)].lower() == SCHEME else ""
        before, mark, query = rest.rpartition("?")
        has_options = bool(mark) and _OPTIONS.fullmatch(query) is not None
        authority, slash, path = (before if has_options else rest).partition("/")
        server = _SERVER.fullmatch(authority)
        if server is None:
            raise UsageError(
                "An NFS URL has no user and no password" if "@" in authority else "The URL names no NFS server",
                uri=redact(uri),
                hint="Expected nfs://server[:port]/export/path?version=4; name a user by number, with uid= and gid=",
            )
        if "\0" in path:
            raise UsageError("A path cannot hold a NUL", uri=redact(uri).replace("\0", ""))
        own = SecretOptions({"nfsport": server["port"]} if server["port"] else {})
        if has_options:
            pairs = (pair.partition("=")[::2] for pair in query.split("&"))
            own.update({str(name): value for name, value in pairs})
        _check_names(own)
        check_option_names("nfs://", storage_options, BOUNDS)
        own.update({name: storage_options[name] for name in BOUNDS if storage_options.get(name) is not None})
        return cls(server["host"], slash + path or "/", {name: _number(name, value) for name, value in own.items()})

    @property
    def server(self) -> str:
        """The server's name in the engine. A server with an unusual NFS version has a name of its own."""
        version = self.options.get("version", USUAL_VERSION)
        return self.shown("" if version == USUAL_VERSION else f"?version={version}")

    def at(self, path: str) -> NfsUrl:
        """Return the URL of another path on the same server."""
        return replace(self, path=path)

    def shown(self, path: str) -> str:
        """Return the URL of a path for messages: without options, and with the port in its usual place."""
        port = f":{self.options['nfsport']}" if "nfsport" in self.options else ""
        return f"{SCHEME}{self.host}{port}{path}"

    def __str__(self) -> str:
        """Return the URL for the engine; it always has options, so that no ``?`` of the path is read as their start."""
        options = {"version": USUAL_VERSION, **self.options}
        return f"{SCHEME}{self.host}{self.path}?" + "&".join(f"{name}={value}" for name, value in options.items())


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in BOUNDS:
            raise OptionError(f"nfs:// has no option {name[:40]!r}", hint=f"There are {', '.join(BOUNDS)}")


def _number(name: str, value: object) -> int:
    low, high = BOUNDS[name]
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise OptionError(f"{name} must be a number from {low} to {high}, not {str(value)[:40]!r}")
    return number
