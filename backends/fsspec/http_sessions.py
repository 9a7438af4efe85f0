"""Sessions of fsspec's HTTP file system that keep to our rules of redirects, whoever makes them.

Guarantees: a redirect to another origin is refused where the options may hold a secret: fsspec and aiohttp would take
all but ``Authorization`` there (``X-Api-Key``, cookies), and an ``ssl`` context its client certificate. The other rules
of `backends/client/redirects.py` hold, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem
from fsspec.config import apply_config

from streamer.backends.client.redirects import Hop, next_hop, origin_of
from streamer.core.errors import OptionError, RedirectError
from streamer.core.secrets.options import SecretOptions, plain
from streamer.core.secrets.redact import redact
from streamer.core.secrets.urls import hidden_uri

if TYPE_CHECKING:
    import aiohttp

__all__ = ["GuardedSessions", "with_guarded_sessions"]

_SECRETS = frozenset({"auth", "connector", "cookie_jar", "cookies", "get_client", "headers", "ssl"})


@dataclass(frozen=True, repr=False)
class GuardedSessions:
    """Makes sessions; to fsspec, which keeps a file system for each text of its options, equal ones are one.

    Attributes:
        make: The user's own maker of sessions, or None.
        may_leave: Redirects may lead to another origin.
        may_be_local: And from elsewhere to addresses of this machine.
    """

    make: Callable[..., Awaitable[Any]] | None
    may_leave: bool
    may_be_local: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({id(self.make):#x}, {self.may_leave}, {self.may_be_local})"

    async def __call__(self, **options: Any) -> Any:
        """Make a session; a trace is the one place where aiohttp lets requests of others be watched."""
        import aiohttp  # noqa: PLC0415  (who reads no HTTP need not have it)

        session = aiohttp.ClientSession(**options) if self.make is None else await self.make(**options)
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(partial(_check_redirect, self))
        trace.freeze()
        session.trace_configs.append(trace)
        return session


def with_guarded_sessions(cls: type[AbstractFileSystem], url: str, options: Mapping[str, Any]) -> SecretOptions:
    """Complete arguments of fsspec's HTTP file system, and take ``local_redirects``, unknown to it, out of them.

    Args:
        cls: Its class.
        url: What is read through it.
        options: The arguments.

    Raises:
        OptionError: ``client_kwargs`` is no mapping.
    """
    own = SecretOptions(apply_config(cls, plain(options)))
    may_be_local = own.pop("local_redirects", None) is True
    if isinstance(own.get("get_client"), GuardedSessions):
        return own
    may_leave = not _may_hold_secrets(url, own)
    own["get_client"] = GuardedSessions(own.get("get_client"), may_leave, may_be_local)
    return own


def _may_hold_secrets(url: str, options: Mapping[str, Any]) -> bool:
    client = options.get("client_kwargs") or {}
    if not isinstance(client, Mapping):
        raise OptionError("client_kwargs must be a mapping")
    return "@" in urlsplit(url).netloc or any(options.get(name) or client.get(name) for name in _SECRETS)


async def _check_redirect(
    rules: GuardedSessions, _session: Any, _context: Any, told: aiohttp.TraceRequestRedirectParams
) -> None:
    before, location = hidden_uri(str(told.url)), hidden_uri(told.response.headers.get("Location"))
    del told  # its text shows the headers, and no frame may while an error passes
    after = next_hop(Hop(before), location, redact(before), may_be_local=rules.may_be_local)
    if not rules.may_leave and origin_of(before) != origin_of(after.url):
        raise RedirectError(
            "The server redirects to another host, which fsspec would show what the options hold",
            hint="Name that host's own URL, or give no headers, cookies, login or client beside this one",
        )
