"""Makes the file systems in a chained URL (``zip://a::https://host/b``) follow our rules.

Guarantees: every ``http(s)://`` file system that fsspec makes for a chain and its options uses `http_sessions`, and so
follows our rules of redirects: for a link of the chain, or for the ``target_protocol``, ``remote_protocol`` or ``fo``
in the options. Those of S3 and the Hub take a blank variable for an unset one (`login_options`). Files of references
(``reference://``) may name hosts themselves; their ``remote_protocol`` is required.
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

# The arguments in which a file system over another one has the protocol and the options of that.
_TARGETS = (("target_protocol", "target_options"), ("remote_protocol", "remote_options"))


def with_guarded_links(uri: str, options: Mapping[str, Any]) -> SecretOptions:
    """Complete the options for ``fsspec.url_to_fs``.

    Args:
        uri: A URL, chained or not.
        options: Those of the first link, and under the names of their schemes those of the others.

    Raises:
        Exception: what fsspec raises for an unknown scheme.
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
    """Return the exception that says more than fsspec's "not found" about the server at the end of a chain.

    In the URL of an archive fsspec takes a ``?`` for a pattern: whatever the server answers, it then matches no file.

    Args:
        error: The exception of ``fsspec.url_to_fs``.
        uri: The chained URL.
        options: From `with_guarded_links`.
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
    """Return what completes the URL and options of a scheme; None for one without rules."""
    if cls := _http_class(scheme):
        return partial(with_guarded_sessions, cls)
    return with_login(scheme) if scheme in LOGINS else None


def _http_class(scheme: Any) -> type[AbstractFileSystem] | None:
    """Return the class of a scheme where it is fsspec's for HTTP or derives from it, without importing that."""
    if not isinstance(scheme, str) or scheme not in fsspec.available_protocols():
        return None
    cls: type[AbstractFileSystem] = fsspec.get_filesystem_class(scheme)
    names = {(base.__module__, base.__name__) for base in cls.__mro__}
    return cls if ("fsspec.implementations.http", "HTTPFileSystem") in names else None
