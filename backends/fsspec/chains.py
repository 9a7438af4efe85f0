"""Makes the file systems in a chained URL (``zip://a::https://host/b``) follow our rules.

Guarantees: every ``http(s)://`` file system that fsspec makes for a chain and its options uses `http_sessions`, so it
follows our rules for redirects. It may come from a link of the chain, or from ``target_protocol``, ``remote_protocol``
or ``fo`` in the options. File systems of S3 and the Hub treat a blank variable as unset (`login_options`). A reference
file (``reference://``) may name hosts itself, so its ``remote_protocol`` is required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from streamer.backends.fsspec.http_sessions import with_guarded_sessions
from streamer.backends.fsspec.login_options import LOGINS, with_login
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["reason_for_missing", "with_guarded_links"]

# The arguments in which a file system over another file system holds the protocol and the options of the other one.
_TARGETS = (("target_protocol", "target_options"), ("remote_protocol", "remote_options"))


def with_guarded_links(uri: str, options: Mapping[str, Any]) -> SecretOptions:
    """Complete the options for ``fsspec.url_to_fs``.

    Args:
        uri: A URL, chained or not.
        options: Options of the first link; options of other links stand under the names of their schemes.

    Raises:
        Exception: fsspec's exception for an unknown scheme.
    """
    first, *links = uri.split("::")
    own = SecretOptions(options)
    for link in links:
        scheme = _scheme_of(link)
        if rules := _rules_of(scheme):
            own[scheme] = rules(link, own.get(scheme) or {})
    for name in own:
        if isinstance(own[name], Mapping):
            own[name] = _with_guarded_targets(own[name])
    if rules := _rules_of(_scheme_of(first)):  # the URL may be an option of another file system
        of_scheme = own.pop(_scheme_of(first), None) or {}
        return rules(first, SecretOptions({**of_scheme, **own}))
    return _with_guarded_targets(own)


def reason_for_missing(error: Exception, uri: str, options: Mapping[str, Any]) -> Exception:
    """Return an exception that says more about the server at the end of a chain than fsspec's "not found".

    In the URL of an archive fsspec takes a ``?`` for a pattern, which matches no file, whatever the server answers.

    Args:
        error: The exception of ``fsspec.url_to_fs``.
        uri: The chained URL.
        options: The result of `with_guarded_links`.
    """
    link = uri.rpartition("::")[2]
    cls = _http_class(_scheme_of(link)) if "?" in link and isinstance(error, FileNotFoundError) else None
    if cls is None:
        return error
    try:
        cls(**plain(options.get(_scheme_of(link)) or {}), skip_instance_cache=True).info(str(link))
    except Exception as reason:
        return reason
    return error


def _with_guarded_targets(options: Mapping[str, Any]) -> SecretOptions:
    own = SecretOptions(options)
    for name_of_protocol, name in _TARGETS:
        url = own.get("fo") if name == "target_options" else None
        of_target = own.get(name) or {}
        if not isinstance(of_target, Mapping):  # fsspec raises an error
            continue
        if rules := _rules_of(own.get(name_of_protocol)):
            own[name] = rules(url if isinstance(url, str) else "", of_target)
        elif isinstance(url, str) and (guarded := with_guarded_links(url, of_target)):
            own[name] = guarded
    return own


def _scheme_of(link: str) -> str:
    return str(link.partition("://")[0])


def _rules_of(scheme: Any) -> Callable[[str, Mapping[str, Any]], SecretOptions] | None:
    """Return the function that completes the options for a URL of a scheme; None for a scheme without rules."""
    if cls := _http_class(scheme):
        return partial(with_guarded_sessions, cls)
    return with_login(scheme) if scheme in LOGINS else None


def _http_class(scheme: Any) -> type[AbstractFileSystem] | None:
    """Return the class of a scheme if it is fsspec's HTTP file system or a subclass, without importing that class."""
    if not isinstance(scheme, str) or scheme not in fsspec.available_protocols():
        return None
    cls: type[AbstractFileSystem] = fsspec.get_filesystem_class(scheme)
    names = {(base.__module__, base.__name__) for base in cls.__mro__}
    return cls if ("fsspec.implementations.http", "HTTPFileSystem") in names else None
