"""Makes file systems follow our rules although fsspec or the caller makes them: in chained URLs, and given as ``fs=``.

In a chained URL (``zip://a::https://host/b``), redirects and logins follow our rules, and blank variables count as
unset. Guarantees: an option of the user is never changed. A ``verify`` that switches the verification of certificates
off is refused. If no variable is blank, only the session of an s3fs is set: a load without a chain uses the same kind
of session.

A caller's file system is refused for a URL of another storage: it would take the whole URL for a path, and report a
missing bucket with a strange name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from streamer.backends.fsspec.http_sessions import with_guarded_sessions
from streamer.backends.fsspec.instances import layers
from streamer.backends.fsspec_settings import names_of_arguments
from streamer.backends.option_names import check_option_names
from streamer.core.errors import OptionError
from streamer.core.quoting import quoted
from streamer.core.secrets.environment import blank_variables, is_blank
from streamer.core.secrets.redact import redact

_HINT = "Name the CA instead: client_kwargs={'verify': '/path/ca.pem'}, or AWS_CA_BUNDLE=/path/ca.pem"

# The arguments in which a file system over another file system holds the protocol and the options of the other one.
_TARGETS = (("target_protocol", "target_options"), ("remote_protocol", "remote_options"))

# File systems of fsspec, and our own, that find the file system of a URL themselves; "abstract" states no scheme.
_OF_ANY_SCHEME = {"abstract", "generic", "reference", "streamer"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(?:://|::)")


def with_login(scheme: str) -> Callable[[str, Mapping[str, Any]], dict[str, Any]]:
    """Return the function that completes the options for a URL of a scheme in `LOGINS`."""

    def completed(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
        del url  # all URLs of these schemes have the same rules
        own = dict(options)
        LOGINS[scheme](own)
        return own

    return completed


def check_instance(fs: AbstractFileSystem) -> None:
    """Check that the caller's file system and those under it verify certificates. Ignore blank variables."""
    for layer in layers(fs):
        if "s3fs" not in {cls.__module__.partition(".")[0] for cls in type(layer).__mro__}:
            continue
        from streamer.backends.fsspec.aws_session import AsyncEnvironmentSession  # noqa: PLC0415  (only S3 needs it)
        from streamer.backends.private_names.storage_clients import (  # noqa: PLC0415
            client_verifies_tls,
            give_session,
            is_connected,
        )

        if not client_verifies_tls(layer):
            raise OptionError("The file system fs= is connected without verifying TLS certificates", hint=_HINT)
        if not is_connected(layer) and layer.session is None:
            give_session(layer, AsyncEnvironmentSession(dict(layer.kwargs)))


def _fill_s3(options: dict[str, Any]) -> None:
    client = options.get("client_kwargs")
    verify = client.get("verify") if isinstance(client, Mapping) else None
    if verify is False or is_blank(verify):
        raise OptionError(
            "verify=False and a blank verify are refused: TLS certificates are always verified",
            hint=_HINT,
        )
    if options.get("session") is not None:
        return
    try:
        from aiobotocore.session import AioSession  # noqa: PLC0415  (only S3 needs it)
        from s3fs import S3FileSystem  # noqa: PLC0415

        from streamer.backends.fsspec.aws_session import AsyncEnvironmentSession  # noqa: PLC0415
    except ImportError:  # fsspec reports it
        return
    of_session = names_of_arguments(AioSession)
    check_option_names("s3://", options, names_of_arguments(S3FileSystem) | of_session)
    options["session"] = AsyncEnvironmentSession({name: options[name] for name in options if name in of_session})


def _fill_hub(options: dict[str, Any]) -> None:
    try:
        from streamer.backends.hub_variables import OF_HOME, hub_endpoint, saved_token  # noqa: PLC0415
    except ImportError:
        return
    if blank_variables(["HF_ENDPOINT"]):
        options.setdefault("endpoint", hub_endpoint())
    if blank_variables((*OF_HOME, "HF_TOKEN_PATH")):
        options.setdefault("token", saved_token() or False)


# The functions that complete the options of each scheme.
LOGINS: Mapping[str, Callable[[dict[str, Any]], None]] = {"hf": _fill_hub, "s3": _fill_s3, "s3a": _fill_s3}


def with_guarded_links(uri: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the options for ``fsspec.url_to_fs``."""
    first, *links = uri.split("::")
    own = dict(options)
    for link in links:
        scheme = _scheme_of(link)
        if rules := _rules_of(scheme):
            own[scheme] = rules(link, own.get(scheme) or {})
    for name, value in own.items():
        if isinstance(value, Mapping):
            own[name] = _with_guarded_targets(value)
    if rules := _rules_of(_scheme_of(first)):  # the URL may be an option of another file system
        of_scheme = own.pop(_scheme_of(first), None) or {}
        return rules(first, {**of_scheme, **own})
    return _with_guarded_targets(own)


def reason_for_missing(error: Exception, uri: str, options: Mapping[str, Any]) -> Exception:
    """Return an exception that says more about the server at the end of a chain than fsspec's "not found".

    In the URL of an archive fsspec takes a ``?`` for a pattern, which matches no file, whatever the server answers.
    """
    link = uri.rpartition("::")[2]
    cls = _http_class(_scheme_of(link)) if "?" in link and isinstance(error, FileNotFoundError) else None
    if cls is None:
        return error
    try:
        cls(**options.get(_scheme_of(link)) or {}, skip_instance_cache=True).info(link)
    except Exception as reason:
        return reason
    return error


def _with_guarded_targets(options: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(options)
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


def _rules_of(scheme: Any) -> Callable[[str, Mapping[str, Any]], dict[str, Any]] | None:
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


def check_scheme(fs: AbstractFileSystem, path: str, builtin: Iterable[str]) -> None:
    """Refuse a file system for a URL of another scheme."""
    match = _SCHEME.match(path)
    scheme = match[1].lower() if match else None
    own = {name for layer in layers(fs) for each in (type(layer), layer) for name in _protocols(each.protocol)}
    if scheme is None or scheme in own or own & _OF_ANY_SCHEME:
        return
    if scheme in {*builtin, *fsspec.available_protocols()}:
        raise OptionError(
            f"The URL begins with {scheme}://, but the file system fs= ({type(fs).__name__}) reads {_shown(own)}",
            uri=redact(path),
            hint=f"Give fs= a file system of {quoted(scheme)}, or leave it out and give storage_options=",
        )


def _protocols(protocol: str | Iterable[str]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _shown(names: Iterable[str]) -> str:
    return " and ".join(f"{name}://" for name in sorted(names))
