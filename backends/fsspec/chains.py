"""The HTTP file systems in a chained URL (``zip://a::https://host/b``), under our rules of redirects.

Guarantees: whatever fsspec makes of a chain and its options for ``http(s)://``, to read through, has sessions of
`http_sessions`: a link of the chain, or the ``target_protocol``, ``remote_protocol`` or ``fo`` that the options name.
Files of references (``reference://``) may name hosts themselves; their ``remote_protocol`` must be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from streamer.backends.fsspec.http_sessions import with_guarded_sessions
from streamer.core.secrets.options import SecretOptions

__all__ = ["with_guarded_links"]

# Where file systems that lie over others take the protocol and the options of these.
_TARGETS = (("target_protocol", "target_options"), ("remote_protocol", "remote_options"))


def with_guarded_links(uri: str, options: Mapping[str, Any]) -> SecretOptions:
    """Complete the options of what ``fsspec.url_to_fs`` will open.

    Args:
        uri: A URL, chained or not.
        options: Flat for its first link, and under the names of their schemes for the others.

    Raises:
        Exception: whatever fsspec raises for a scheme that it does not know.
    """
    first, *links = uri.split("::")
    own = SecretOptions(options)
    for link in links:
        scheme = _scheme_of(link)
        if cls := _http_class(scheme):
            own[scheme] = with_guarded_sessions(cls, link, own.get(scheme) or {})
    for name in own:
        if isinstance(own[name], Mapping):
            own[name] = _with_guarded_targets(own[name])
    if cls := _http_class(_scheme_of(first)):  # where the URL is itself an option of another
        of_scheme = own.pop(_scheme_of(first), None) or {}
        return with_guarded_sessions(cls, first, SecretOptions({**of_scheme, **own}))
    return _with_guarded_targets(own)


def _with_guarded_targets(options: Mapping[str, Any]) -> SecretOptions:
    own = SecretOptions(options)
    for name_of_protocol, name in _TARGETS:
        within = own.get("fo") if name == "target_options" else None
        given = own.get(name) or {}
        if not isinstance(given, Mapping):  # fsspec will say so
            continue
        if cls := _http_class(own.get(name_of_protocol)):
            own[name] = with_guarded_sessions(cls, within if isinstance(within, str) else "", given)
        elif isinstance(within, str) and (guarded := with_guarded_links(within, given)):
            own[name] = guarded
    return own


def _scheme_of(link: str) -> str:
    return str(link.partition("://")[0])


def _http_class(scheme: Any) -> type[AbstractFileSystem] | None:
    """Give the class of a scheme where it is fsspec's of HTTP; that need not be imported to know."""
    if not isinstance(scheme, str) or scheme not in fsspec.available_protocols():
        return None
    found: type[AbstractFileSystem] = fsspec.get_filesystem_class(scheme)
    names = {(base.__module__, base.__name__) for base in found.__mro__}
    return found if ("fsspec.implementations.http", "HTTPFileSystem") in names else None
