"""Sessions of fsspec's HTTP file system that follow our rules for redirects, even if the user makes the session.

Guarantees: a redirect to another origin is refused if the options may hold a secret. fsspec and aiohttp would send all
headers except ``Authorization`` to that origin (``X-Api-Key``, cookies), and an ``ssl`` context would send its client
certificate. The other rules of `backends/client/redirects.py` hold, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem

from streamer.backends.client.option_checks import check_tls_is_verified
from streamer.backends.client.proxy import named_proxy
from streamer.backends.client.redirects import Hop, next_hop, origin_of
from streamer.backends.client.request_headers import basic_authorization, login_of
from streamer.backends.fsspec_settings import configured_options
from streamer.backends.login_state import login_state
from streamer.core.errors import OptionError, RedirectError
from streamer.core.options.limits import Limits
from streamer.core.secrets.redact import redact
from streamer.core.store.certificates import trust_in

if TYPE_CHECKING:
    import aiohttp

LIMITS = Limits()  # the defaults: fsspec keeps a session for many loads, so it cannot use the times of one load
SILENCE_S = max(LIMITS.first_byte_timeout_s, LIMITS.stall_timeout_s)

_SECRETS = frozenset({"auth", "connector", "cookie_jar", "cookies", "get_client", "headers", "ssl"})


@dataclass(frozen=True, repr=False)
class GuardedSessions:
    """Makes sessions. Equal rules have an equal `repr`, because fsspec compares options by their text."""

    make: Callable[..., Awaitable[Any]] | None  # the user's ``get_client``, or None
    may_leave: bool  # redirects may lead to another origin
    may_be_local: bool  # redirects may lead from remote servers to addresses of this machine
    # The current environment, so that the next file system uses changed certificates and proxies.
    login: Hashable = field(default_factory=login_state)

    def __repr__(self) -> str:
        rules = f"{id(self.make):#x}, {self.may_leave}, {self.may_be_local}, {hash(self.login):#x}"
        return f"{type(self).__name__}({rules})"

    async def __call__(self, **options: Any) -> Any:
        """Make a session with a trace, because only a trace sees the redirects of requests that fsspec sends."""
        import aiohttp  # noqa: PLC0415  (only HTTP needs it)

        # aiohttp's default ends every download after five minutes, whether it is silent or just large.
        times = aiohttp.ClientTimeout(total=None, connect=LIMITS.connect_timeout_s, sock_read=SILENCE_S)
        options.setdefault("timeout", times)
        if (
            self.make is None
        ):  # aiohttp makes its own context once in a process, and uses a blank SSL_CERT_FILE as a path
            options.setdefault("connector", aiohttp.TCPConnector(ssl=trust_in()))
        session = aiohttp.ClientSession(**options) if self.make is None else await self.make(**options)
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(partial(_check_redirect, self))
        trace.freeze()
        session.trace_configs.append(trace)
        return session


def with_guarded_sessions(cls: type[AbstractFileSystem], url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the arguments of fsspec's HTTP file system; remove ``local_redirects``, which is none of them."""
    own = configured_options(cls, options)
    check_tls_is_verified(own)
    _fill_logins(own)
    if isinstance(own.get("client_kwargs"), Mapping):
        client = dict(own["client_kwargs"])
        _fill_logins(client)
        own["client_kwargs"] = client
    may_be_local = own.pop("local_redirects", None) is True
    if isinstance(own.get("get_client"), GuardedSessions):
        return own
    may_leave = not _may_hold_secrets(url, own)
    own["get_client"] = GuardedSessions(own.get("get_client"), may_leave, may_be_local)
    return own


def _fill_logins(options: dict[str, Any]) -> None:
    """Convert pairs of user and password, which our own HTTP backend accepts, too: aiohttp takes only its own class."""
    if isinstance(options.get("auth"), (tuple, list)) and not hasattr(options["auth"], "login"):
        if login_of(options["auth"]) is None:
            raise OptionError("auth must be aiohttp.BasicAuth or a pair (user, password)")
        headers = dict(options.get("headers") or {})
        headers.setdefault("Authorization", basic_authorization(options.pop("auth")))
        options["headers"] = headers
    if isinstance(options.get("proxy_auth"), (tuple, list)) and options.get("proxy"):
        options["proxy"] = named_proxy(options)
        del options["proxy_auth"]


def _may_hold_secrets(url: str, options: Mapping[str, Any]) -> bool:
    client = options.get("client_kwargs") or {}
    if not isinstance(client, Mapping):
        raise OptionError("client_kwargs must be a mapping")
    return "@" in urlsplit(url).netloc or any(options.get(name) or client.get(name) for name in _SECRETS)


async def _check_redirect(
    rules: GuardedSessions, _session: Any, _context: Any, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    before, location = str(redirect.url), redirect.response.headers.get("Location", "")
    after = next_hop(Hop(before), location, redact(before), may_be_local=rules.may_be_local)
    if not rules.may_leave and origin_of(before) != origin_of(after.url):
        raise RedirectError(
            "The server redirects to another host, which fsspec would send the secrets in the options",
            hint="Name that host's own URL, or give no headers, cookies, login or client beside this one",
        )
