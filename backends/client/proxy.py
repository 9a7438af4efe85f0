"""Which proxy a request takes: the one that the user's options name, else the one that the environment names.

Guarantees: ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` count as they do for the engine, and are looked at when a
request is sent, not when a library is imported. aiohttp's own way (``trust_env``) would also send passwords that it
finds in a netrc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from streamer.backends.client.logins import login_of
from streamer.core.errors import OptionError

__all__ = ["environment_proxy", "named_proxy"]


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL; without a scheme, it speaks HTTP, as for libcurl."""
    place = urlsplit(url)
    proxy = None if proxy_bypass(place.hostname or "") else getproxies().get(place.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def named_proxy(options: Mapping[str, Any]) -> str | None:
    """Return the proxy that the options ``proxy`` and ``proxy_auth`` of aiohttp name, with its password.

    Raises:
        OptionError: ``proxy_auth`` is no login.
    """
    if not options.get("proxy"):
        return None
    if not options.get("proxy_auth"):
        return str(options["proxy"])
    login = login_of(options["proxy_auth"])
    if login is None:
        raise OptionError("proxy_auth must be aiohttp.BasicAuth or a pair (user, password)")
    user, password = (quote(part, safe="") for part in login)
    parts = urlsplit(str(options["proxy"]))
    return parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
