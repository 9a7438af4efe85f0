"""Completes the arguments of `gcsfs.GCSFileSystem` from the environment; checks the arguments of aiohttp's session.

Guarantees: the user's options (arguments, fsspec configuration) are never overridden or changed in place.

An argument of the session has the same effect on reads and on lookups; if the engine cannot use it, Python does both
with that session. Refuses arguments that aiohttp does not have, unverified TLS, and headers that would break reading by
ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer.backends.client.option_checks import TEXT, Kind, Kinds, check_types
from streamer.backends.client.proxy import environment_proxy
from streamer.backends.client.request_headers import check_headers, own_headers
from streamer.backends.fsspec_settings import are_configured
from streamer.backends.gcs.credentials import EMULATOR
from streamer.backends.option_names import OF_FSSPEC, check_option_names
from streamer.core.errors import OptionError
from streamer.core.imported import if_imported
from streamer.core.secrets.environment import blank_variables

_OF_ENGINE = frozenset({"headers", "proxy", "proxy_auth", "trust_env"})

# The options that this package reads, including its own `key_file`; others are checked against gcsfs's signature.
_NAMES = frozenset(
    {"access", "endpoint_url", "key_file", "project", "requester_pays", "requests_timeout", "session_kwargs", "token"}
)
_ACCESS = ("read_only", "read_write", "full_control")


def check_session(session: Mapping[str, Any]) -> None:
    """Check the arguments of a session."""
    if session.keys() - _OF_ENGINE:
        _check_names_of_session(session)
    check_headers(own_headers(session))


def only_of_aiohttp(session: Mapping[str, Any], url: str) -> str | None:
    """Return the name of an argument that the engine cannot use for a URL, or None."""
    if session.get("trust_env") is False and not session.get("proxy") and environment_proxy(url):
        return "trust_env"
    return next((name for name in session if name not in _OF_ENGINE and session[name]), None)


def _check_names_of_session(session: Mapping[str, Any]) -> None:
    import aiohttp  # noqa: PLC0415  the import takes 0.2 s

    from streamer.backends.fsspec_settings import names_of_arguments  # noqa: PLC0415  imports aiohttp, too
    from streamer.backends.private_names.storage_clients import connector_verifies_tls  # noqa: PLC0415

    if not connector_verifies_tls(session.get("connector")):
        raise OptionError("A connector with ssl=False is refused: TLS certificates are always verified")
    for name in ("ssl", "ssl_context", "cert"):
        if name in session:
            raise OptionError(
                f"session_kwargs has no {name!r}: a session of aiohttp has its TLS context in its connector",
                hint="Give {'connector': aiohttp.TCPConnector(ssl=context)}, or for a private CA alone SSL_CERT_FILE",
            )
    # Sessions of older versions have no argument `proxy`, but the engine reads it from these options.
    check_option_names("session_kwargs", session, names_of_arguments(aiohttp.ClientSession) | _OF_ENGINE)


def filled_options(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Complete the arguments of `GCSFileSystem` from fsspec's configuration and the environment.

    Variables of the environment become arguments, so that a login of an earlier environment is not used after the
    environment has changed. For an emulator no credentials are looked up, as in Google's own library.
    """
    _check_names(storage_options)
    options = _configured(storage_options, environment)
    check_types(options, _kinds())
    if options.get("access") not in (None, *_ACCESS):
        raise OptionError(f"The option access must be one of {', '.join(_ACCESS)}")
    if options.get("project", "") is None:
        del options["project"]  # gcsfs would warn about None
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if not options.get("endpoint_url") and emulator not in ("", "default"):
        options["endpoint_url"] = emulator if "://" in emulator else f"http://{emulator}"
        options["token"] = EMULATOR if options.get("token") is None else options["token"]
    if not options.get("endpoint_url") and blank_variables(["GOOGLE_CLOUD_UNIVERSE_DOMAIN"]):
        options["endpoint_url"] = "https://storage.googleapis.com"  # gcsfs would use a blank domain
    if options.get("token") is None and environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        options["key_file"] = environment["GOOGLE_APPLICATION_CREDENTIALS"]
    if _looks_like_a_path(options.get("token")):
        try:
            open(options["token"], "rb").close()
        except OSError as error:
            raise OptionError(f"The option token names a file that cannot be read ({type(error).__name__})") from None
    check_session(options.get("session_kwargs") or {})
    return options


def _looks_like_a_path(token: Any) -> bool:
    """Say whether a token looks like a file's path; a mistyped path must not be sent to the server as a token."""
    return isinstance(token, str) and (token.endswith(".json") or token.startswith(("/", "./", "../", "~")))


def _check_names(options: Mapping[str, Any]) -> None:
    names = _NAMES
    if options.keys() - _NAMES - OF_FSSPEC:
        from gcsfs.core import GCSFileSystem  # noqa: PLC0415  the import takes half a second

        from streamer.backends.fsspec_settings import names_of_arguments  # noqa: PLC0415  imports aiohttp

        # gcsfs's class for buckets with folders takes `memmove_max_workers` from ``**kwargs``.
        names = _NAMES | names_of_arguments(GCSFileSystem) | {"memmove_max_workers"}
    check_option_names("gs://", options, names)


def _configured(options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    if not options.get("asynchronous") and not are_configured("gs", "gcs", variables=environment):
        return dict(options)
    from gcsfs.core import GCSFileSystem  # noqa: PLC0415  as above

    from streamer.backends.fsspec_settings import configured_options  # noqa: PLC0415

    return configured_options(GCSFileSystem, options)


def _kinds() -> Kinds:
    yarl = if_imported("yarl")  # unless yarl is imported, no option can be a URL of yarl
    return {
        **dict.fromkeys(("access", "endpoint_url", "key_file", "project"), TEXT),
        "requester_pays": Kind("True, or the name of a project", (bool, str)),
        "session_kwargs": {"proxy": Kind("a URL", (str, yarl.URL) if yarl else (str,))},
    }
