"""HTTP objects under options that only fsspec's own client can honour: a session, a connector, an SSL context.

Guarantees: the user's options reach fsspec as they are, and the load's report says why Python reads the bytes. A
redirect to another origin is refused where the options may hold a secret: fsspec and aiohttp would take all but
``Authorization`` there (``X-Api-Key``, cookies), and an ``ssl`` context its client certificate. The other rules of
`redirects` hold, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from fsspec.implementations.http import HTTPFileSystem

from streamer.backends.fsspec.leftovers import Leftovers
from streamer.backends.fsspec.store import FsspecStore
from streamer.backends.http.access import access_of
from streamer.backends.http.listing import may_be_shard
from streamer.backends.http.redirects import Hop, next_hop, origin_of
from streamer.core.errors import OptionError, RedirectError
from streamer.core.secrets.options import SecretOptions, plain
from streamer.core.secrets.redact import redact
from streamer.core.secrets.urls import hidden_uri
from streamer.core.store.sources import ObjectInfo, PythonSource
from streamer.core.store.trust import trust_in

__all__ = ["open_through_fsspec"]

_SECRETS = frozenset({"auth", "connector", "cookie_jar", "cookies", "get_client", "headers", "ssl"})


def open_through_fsspec(uri: str, options: Mapping[str, Any], foreign: str) -> FsspecStore:
    """Open the server of `uri` with fsspec's `HTTPFileSystem`.

    Args:
        uri: The URL.
        options: Its arguments, as `merged_options` gives them.
        foreign: The option that asks for it.

    Raises:
        OptionError: ``verify`` names no CA file, or fsspec refuses the options.
    """
    own = SecretOptions(options)
    verify = own.pop("verify", None)
    may_be_local = own.pop("local_redirects", None) is True
    if verify not in (None, True):
        own.setdefault("ssl", trust_in(access_of(uri, {"verify": verify}).ca_file or ""))
    leftovers = Leftovers()
    # A `partial` of these is told from others by fsspec, which keeps an instance for each set of options.
    rules = _Rules(may_leave=not _may_hold_secrets(uri, options), may_be_local=may_be_local)
    own["get_client"] = partial(_guarded_session, own.get("get_client") or _usual_session, rules)
    try:
        fs = HTTPFileSystem(**plain(own))
    except (TypeError, ValueError) as error:
        raise OptionError(f"fsspec refuses the storage options: {type(error).__name__}") from None
    store = _ThroughFsspec(fs, uri, f"the option {foreign} is one that only fsspec can honour: read through it")
    leftovers.forget_after(store, fs)
    return store


@dataclass(frozen=True)
class _Rules:
    """Of redirects.

    Attributes:
        may_leave: They may lead to another origin.
        may_be_local: And from elsewhere to addresses of this machine.
    """

    may_leave: bool
    may_be_local: bool


def _may_hold_secrets(uri: str, options: Mapping[str, Any]) -> bool:
    client = options.get("client_kwargs") or {}
    return "@" in urlsplit(uri).netloc or any(options.get(name) or client.get(name) for name in _SECRETS)


async def _usual_session(**options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(**options)


async def _guarded_session(make: Callable[..., Awaitable[Any]], rules: _Rules, **options: Any) -> Any:
    """Make the user's session, and have it keep to the rules of redirects.

    A trace is aiohttp's only place to say so for requests that fsspec makes.
    """
    session = await make(**options)
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(partial(_check_redirect, rules))
    trace.freeze()
    session.trace_configs.append(trace)
    return session


async def _check_redirect(
    rules: _Rules, _session: Any, _context: Any, told: aiohttp.TraceRequestRedirectParams
) -> None:
    before, location = hidden_uri(str(told.url)), hidden_uri(told.response.headers.get("Location"))
    del told  # its text shows the headers, and no frame may while an error passes
    after = next_hop(Hop(before), location, redact(before), may_be_local=rules.may_be_local)
    if not rules.may_leave and origin_of(before) != origin_of(after.url):
        raise RedirectError(
            "The server redirects to another host, which fsspec would show what the options hold",
            hint="Name that host's own URL, or leave out the options that only fsspec can honour",
        )


class _ThroughFsspec(FsspecStore):
    def __init__(self, fs: HTTPFileSystem, uri: str, remark: str) -> None:
        super().__init__(fs, uri, uri)
        self._remark = remark

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List as fsspec does, and ask for the sizes of shards, which an index page does not tell."""
        return [
            self.info(info.path) if info.size_bytes is None and may_be_shard(info.path) else info
            for info in super().find(prefix)
        ]

    def source(self, info: ObjectInfo) -> PythonSource:
        """Return the file's reader, and why it is this one."""
        return replace(super().source(info), remark=self._remark)
