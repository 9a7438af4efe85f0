"""Finds the proxy of a request: the proxy that the user's options name, or else the proxy of the environment.

Guarantees: ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` count as they do for the engine. They are read when a
request is sent, not when a library is imported. aiohttp's own option (``trust_env``) would also send passwords from a
netrc file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass, proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed has the first two

from streamer.core.errors import OptionError
from streamer.core.secrets.environment import blank_variables, is_blank, variable
from streamer.core.store.proxies import place_of


def environment_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL. A proxy without a scheme speaks HTTP, as for libcurl."""
    place = urlsplit(url)
    hidden = _hidden_by_blanks()
    proxies = {scheme: proxy for scheme, proxy in {**getproxies(), **hidden}.items() if not is_blank(proxy)}
    host = place.hostname or ""
    if proxy_bypass_environment(host, proxies) if "no" in hidden else proxy_bypass(host):
        return None
    of_all = proxies.get("all", "")
    # A SOCKS proxy in ALL_PROXY is often meant for other programs.
    proxy = proxies.get(place.scheme) or ("" if _is_of_socks(of_all) else of_all)
    if not proxy:
        return None
    check_proxy(proxy)
    return proxy if "://" in proxy else f"http://{proxy}"


def _hidden_by_blanks() -> dict[str, str]:
    """Return the proxies that Python overlooks, because a blank ``https_proxy`` hides ``HTTPS_PROXY`` from it."""
    is_of_web_server = variable("REQUEST_METHOD") is not None  # in a CGI script, a client's header sets HTTP_PROXY
    schemes = [each for each in ("http", "https", "all", "no") if not (each == "http" and is_of_web_server)]
    blank = [name.removesuffix("_proxy") for name in blank_variables(f"{scheme}_proxy" for scheme in schemes)]
    return {scheme: proxy for scheme in blank if (proxy := variable(f"{scheme.upper()}_PROXY"))}


def check_proxy(proxy: str) -> None:
    """Refuse a SOCKS proxy, and a text that is no proxy's URL: it would look like a server that does not run."""
    if _is_of_socks(proxy):
        raise OptionError(
            "SOCKS proxies cannot be used",
            hint="Name an HTTP proxy in HTTPS_PROXY or in the option, or name the host in NO_PROXY",
        )
    if _is_ambiguous(proxy):
        raise OptionError(
            "The login in the proxy's URL holds an @ or a space",
            hint="Write them percent-encoded: %40 for @, %20 for a space",
        )
    if not _names_a_host(proxy):
        raise OptionError(
            "The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or an option names is no URL with a host",
            hint="Write it as http://host:port, or leave it blank for no proxy",
        )


def _names_a_host(proxy: str) -> bool:
    if "://" in proxy and not proxy.lower().startswith(("http://", "https://")):
        return False
    try:
        place = urlsplit(f"//{place_of(proxy)}")
        return bool(place.hostname) and place.port != 0
    except ValueError:  # the port is no number, or a bracket is not closed
        return False


def _is_ambiguous(proxy: str) -> bool:
    """Say whether libcurl and Python would read different parts of the URL as its login."""
    login, _, _ = proxy.rpartition("@")
    return "@" in login or " " in login


def _is_of_socks(proxy: str) -> bool:
    return proxy.lower().startswith("socks")


def named_proxy(options: Mapping[str, Any]) -> str | None:
    """Return the proxy that the options ``proxy`` and ``proxy_auth`` of aiohttp name, with its password."""
    if not options.get("proxy"):
        return None
    check_proxy(str(options["proxy"]))
    if not options.get("proxy_auth"):
        return str(options["proxy"])
    from streamer.backends.client.request_headers import login_of  # noqa: PLC0415 (few loads name a proxy)

    login = login_of(options["proxy_auth"])
    if login is None:
        raise OptionError("proxy_auth must be aiohttp.BasicAuth or a pair (user, password)")
    user, password = (quote(part, safe="") for part in login)
    parts = urlsplit(str(options["proxy"]))
    return parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
