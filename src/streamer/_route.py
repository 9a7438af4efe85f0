"""What leads to a server: the proxies of the options and of the environment.

An answer says that the server is there on this way, and nothing of another. A proxy that makes no tunnel is told as
that by the storages' clients; a proxy of plain HTTP sends a status that the server might have sent as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from streamer import _native
from streamer.core.errors import OptionError, StorageError
from streamer.core.secrets.options import SecretOptions
from streamer.core.store.proxies import place_of, suspect_proxy

__all__ = ["Route"]

# Under these names, options hold the URL of a proxy of plain HTTP: proxy, proxies={"http": …}, of requests also a host.
_OF_PLAIN_HTTP = re.compile(r"proxy|(http|all)(://.*)?")


class Route:
    """Tells the ways to a server apart, for all requests with the same options.

    Args:
        server: ``scheme://host:port``.
        options: Of the storage, which may name proxies.
    """

    def __init__(self, server: str, options: Mapping[str, Any] | None) -> None:
        self._server, self._options = server, SecretOptions(options)
        places = {place_of(value) for name, value in _proxies_in(self._options) if _OF_PLAIN_HTTP.fullmatch(name)}
        self._places = " or ".join(sorted(places))

    def lookup(self) -> _native.Lookup:
        """Return a question to the server, on the way that the options and the environment name at this moment."""
        named = sorted({value for _, value in _proxies_in(self._options)})
        return _native.Lookup(self._server.encode("utf-8", "replace"), "\n".join(named))  # a URL may hold no text

    def note_failure(self, error: StorageError) -> None:
        """Note in an error that the proxy may have sent it, unless it has a word or a number of the storage."""
        if self._server.startswith("http://"):
            suspect_proxy(error, self._place)

    def _place(self) -> str:
        from streamer.backends.client.proxy import environment_proxy  # noqa: PLC0415 (only after a failure: 20 ms)

        with suppress(OptionError):  # SOCKS: it sends no status
            return self._places or place_of(environment_proxy(self._server) or "")
        return ""


def _proxies_in(options: Mapping[str, Any], *, are_all: bool = False) -> Iterator[tuple[str, str]]:
    """Give what is named as a proxy, at any depth, as each storage has its own option: ``proxies``, ``proxy_auth``."""
    for name, value in options.items():
        is_proxy = are_all or "proxy" in str(name) or "proxies" in str(name)
        if isinstance(value, Mapping):
            yield from _proxies_in(value, are_all=is_proxy)
        elif is_proxy and value:
            yield str(name), str(value)
