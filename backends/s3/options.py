"""Completes the arguments of `s3fs.S3FileSystem` that the user leaves out.

Guarantees: the user's options (arguments, fsspec configuration, AWS environment) are never overridden or changed in
place. Refuses unverified TLS.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timezone
from email.utils import formatdate
from hashlib import md5
from typing import Any

from botocore.config import Config
from botocore.session import Session
from botocore.utils import parse_to_aware_datetime

from streamer.backends.client.answer_times import AnswerTimes, answer_times
from streamer.backends.client.option_checks import CA_FILE, MAPPING, NUMBER, TEXT, Kinds, check_types
from streamer.backends.client.proxy import check_proxy, environment_proxy
from streamer.backends.client.request_headers import fault_of
from streamer.backends.fsspec_settings import configured_options, names_of_arguments
from streamer.backends.option_names import check_option_names
from streamer.backends.s3.login import ca_file_of
from streamer.backends.s3.requests import OF_REQUESTS
from streamer.core import VERSION
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import is_blank
from streamer.core.store.certificates import check_client_certificate

OF_SESSION = ("event_hooks", "include_builtin_handlers", "profile", "session_vars")  # of botocore's session
# Options of aiobotocore's own HTTP client, which sends no requests here.
OF_AIOBOTOCORE = frozenset({"connector_args", "http_session_cls", "warm_up_loader_caches"})

_AMAZON = "https://s3.amazonaws.com"  # stands for the hosts of all buckets, which are below it

NAMING_OPTIONS = ("user_agent", "user_agent_appid", "user_agent_extra")
_KEYS_OF_CLIENT = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_KINDS: Kinds = {
    **dict.fromkeys(("endpoint_url", "key", "password", "profile", "secret", "token", "username"), TEXT),
    "client_kwargs": {
        **dict.fromkeys(_KEYS_OF_CLIENT, TEXT),
        **dict.fromkeys(("endpoint_url", "region_name"), TEXT),
        "verify": CA_FILE,
    },
    "config_kwargs": {
        **dict.fromkeys(("proxies", "retries", "s3"), MAPPING),
        **dict.fromkeys(("connect_timeout", "max_pool_connections", "read_timeout"), NUMBER),
        **dict.fromkeys(("region_name", *NAMING_OPTIONS), TEXT),
    },
    "s3_additional_kwargs": {"Metadata": MAPPING},
}


# Arguments of s3fs and of its session. To check other names s3fs is imported, which takes a quarter of a second.
NAMES = frozenset(
    {
        *("anon", "cache_regions", "client_kwargs", "config_kwargs", "default_block_size", "default_cache_type"),
        *("default_fill_cache", "endpoint_url", "key", "password", "requester_pays", "s3_additional_kwargs", "secret"),
        *("session", "token", "use_ssl", "username", "version_aware"),
        *OF_SESSION,
    }
)
_NAMES_OF_CLIENT = names_of_arguments(Session.create_client) - {"self", "service_name", "config"}
_NAMES_OF_CONFIG = names_of_arguments(Config) | {*Config.OPTION_DEFAULTS} | OF_AIOBOTOCORE


_KEY = "SSECustomerKey"
_TIMES = ("Expires", "ObjectLockRetainUntilDate")


class _Schemes:
    """Stands for the class whose configuration fsspec looks up by its protocols."""

    protocol = ("s3", "s3a")


def filled_options(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Complete the arguments of `S3FileSystem` that the user leaves out.

    fsspec's configuration is merged first: a ``client_kwargs`` that is filled before would hide the configured one.
    """
    if not storage_options.keys() <= NAMES:
        _check_names(storage_options)
    options = configured_options(_Schemes, storage_options)
    check_types(options, _KINDS)
    _merge_other_names(options)
    check_option_names("client_kwargs", options.get("client_kwargs") or {}, _NAMES_OF_CLIENT)
    check_option_names("config_kwargs", options.get("config_kwargs") or {}, _NAMES_OF_CONFIG)
    check_option_names("s3_additional_kwargs", options.get("s3_additional_kwargs") or {}, OF_REQUESTS)
    options["client_kwargs"] = _filled_client(options, environment)
    options["config_kwargs"] = _filled_config(options)
    for name in _unstripped(options, environment):  # otherwise S3 reports a wrong signature, or is not reached
        raise OptionError(f"{name} has a space or a line end around it", hint="Strip it where it is read from a file")
    for name in ("key", "secret"):
        if options.get(name) == "":  # botocore would sign with an empty key
            raise OptionError(f"{name} is empty", hint="Leave it out to use the credentials of the environment")
    _check_endpoints(options, environment)
    if _lacks_region(options, environment) and environment.get("AWS_REGION"):
        options["client_kwargs"]["region_name"] = environment["AWS_REGION"]  # all other AWS SDKs read this variable
    proxies = options["config_kwargs"].get("proxies")
    for proxy in (proxies or {}).values():
        check_proxy(str(proxy))
    if not proxies:
        environment_proxy(endpoint_of(options, environment) or _AMAZON)  # raises if the proxy cannot be used
    return options


def texts_of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as headers carry them; a customer's key is in base 64, beside its MD5."""
    apart = ("Metadata", _KEY)
    texts: dict[str, Any] = {name: _text_of(name, value) for name, value in settings.items() if name not in apart}
    if metadata := settings.get("Metadata"):
        texts["Metadata"] = {name: _text_of(f"x-amz-meta-{name}", value) for name, value in metadata.items()}
    if settings.get(_KEY) is not None:
        key = settings[_KEY].encode() if isinstance(settings[_KEY], str) else bytes(settings[_KEY])
        is_encoded = "SSECustomerKeyMD5" in settings
        texts[_KEY] = key.decode() if is_encoded else b64encode(key).decode()
        texts.setdefault("SSECustomerKeyMD5", b64encode(md5(key, usedforsecurity=False).digest()).decode())
    return texts


def _text_of(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if name in _TIMES and value is not None:
        moment = parse_to_aware_datetime(value).astimezone(timezone.utc)
        return formatdate(moment.timestamp(), usegmt=True) if name == "Expires" else f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    fault = fault_of(name, value) if isinstance(value, str) else f"{name} must be text"
    if fault is not None:
        raise OptionError(fault, hint="It is one of s3_additional_kwargs")
    return str(value)


def _check_user_agent(config: Mapping[str, Any]) -> None:
    """Refuse a ``User-Agent`` that cannot be sent."""
    for name in NAMING_OPTIONS:
        if (fault := fault_of("User-Agent", config.get(name) or "")) is not None:
            raise OptionError(fault, hint=f"It is config_kwargs[{name!r}]: remove spaces and line ends around it")


def user_agent_of(name: str | None, app: str | None, extra: str | None) -> str | None:
    """Return the ``User-Agent`` that the engine sends, or None for the engine's own name.

    Example:
        >>> user_agent_of("mine/1", "shop", "team/a")
        'mine/1 team/a'
    """
    if name:
        return " ".join(filter(None, (name, extra)))
    added = [f"app/{app}" if app else None, extra]
    return " ".join(filter(None, (f"streamer/{VERSION}", *added))) if any(added) else None


def _check_names(storage_options: Mapping[str, Any]) -> None:
    from s3fs import S3FileSystem  # noqa: PLC0415 (see above)

    check_option_names("s3://", storage_options, NAMES | names_of_arguments(S3FileSystem))


def _merge_other_names(options: dict[str, Any]) -> None:
    """Move the values of s3fs's alternative option names (``username``, ``password``) to ``key`` and ``secret``."""
    for name, other in (("key", "username"), ("secret", "password")):
        if options.get(other):
            if options.get(name):
                raise OptionError(f"{name} and {other} are two names of one option", hint="Leave one out")
            options[name] = options.pop(other)


def endpoint_of(options: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the endpoint that botocore uses, unless its configuration files name another endpoint."""
    named = (endpoint for _, endpoint in _endpoints(options, environment) if endpoint)
    endpoint = next(named, None)
    return str(endpoint).rstrip("/") if endpoint else None


def _check_endpoints(options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse endpoints that are no URL, or that hold secrets."""
    for name, endpoint in _endpoints(options, environment):
        if not endpoint:
            continue
        if not endpoint.lower().startswith(("http://", "https://")):
            raise OptionError(f"{name} must begin with http:// or https://", hint="As https://host:port")
        if set("@?#") & set(endpoint):
            raise OptionError(f"{name} cannot hold a user, password or query: botocore would show it in its messages")


def _endpoints(options: Mapping[str, Any], environment: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the names and values of all settings of an endpoint, by precedence; variables only if no option is set."""
    return _with_variables(
        [
            ("endpoint_url", options.get("endpoint_url")),
            ("client_kwargs['endpoint_url']", options["client_kwargs"].get("endpoint_url")),
        ],
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        environment,
    )


def _regions(options: Mapping[str, Any], environment: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the names and values of all settings of a region, as `_endpoints` does."""
    of_options = [
        (f"{place}['region_name']", options[place].get("region_name")) for place in ("client_kwargs", "config_kwargs")
    ]
    return _with_variables(of_options, ("AWS_DEFAULT_REGION", "AWS_REGION"), environment)


def _keys(options: Mapping[str, Any], environment: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the names and values of all settings of keys, as `_endpoints` does."""
    of_options = [(name, options.get(name)) for name in ("key", "secret", "token")]
    of_options += [(f"client_kwargs[{name!r}]", options["client_kwargs"].get(name)) for name in _KEYS_OF_CLIENT]
    variables = () if options.get("anon") else map(str.upper, _KEYS_OF_CLIENT)
    return _with_variables(of_options, variables, environment)


def _with_variables(
    of_options: list[tuple[str, Any]], names: Iterable[str], environment: Mapping[str, str]
) -> list[tuple[str, Any]]:
    if any(value for _, value in of_options):
        return of_options
    return of_options + [(name, environment.get(name)) for name in names]


def _unstripped(options: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Return the names of keys, endpoints and regions with a space or line end around them, as a file may add it."""
    named = [*_keys(options, environment), *_endpoints(options, environment), *_regions(options, environment)]
    return [name for name, value in named if isinstance(value, str) and value != value.strip()]


def _filled_client(options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    client = dict(options.get("client_kwargs") or {})
    if client.get("verify") is False:
        raise OptionError(
            "verify=False is refused: TLS certificates are always verified",
            hint="Name the CA instead: client_kwargs={'verify': '/path/ca.pem'}, or AWS_CA_BUNDLE=/path/ca.pem",
        )
    if client.get("verify") is True:  # True is the default, but botocore would then ignore the variables
        del client["verify"]
    session = options.get("session")
    if session is not None and client.get("verify") is None:  # our own sessions already ignore a blank variable
        configured = session.get_config_variable("ca_bundle")
        named = configured if isinstance(configured, str) and not is_blank(configured) else None
        client["verify"] = ca_file_of(None, environment, named) or True
    return client


def _client_certificate(named: Any) -> str | tuple[str, str]:
    """Return the PEM files of a certificate and its key in botocore's form; JSON has the pair as a list."""
    pair = (named,) if isinstance(named, (str, os.PathLike)) else named
    if not isinstance(pair, (list, tuple)) or not 1 <= len(pair) <= 2:
        pair = (None,)
    files = [os.fspath(each) for each in pair if isinstance(each, (str, os.PathLike))]
    if len(files) < len(pair) or not all(files):
        raise OptionError("client_cert must be the path of a PEM file, or a pair of paths: (certificate, key)")
    check_client_certificate(*files)
    return files[0] if len(files) == 1 else (files[0], files[1])


def times_of(options: Mapping[str, Any], limits: Limits) -> AnswerTimes:
    """Return how long an answer may take: botocore's time-outs if the user sets them, else those of `Options`."""
    attempt_s = options["config_kwargs"].get("read_timeout")
    times = answer_times(limits, attempt_s if isinstance(attempt_s, (int, float)) else None)
    connect_s = options["config_kwargs"].get("connect_timeout")
    return replace(times, connect_s=connect_s) if isinstance(connect_s, (int, float)) else times


def _lacks_region(options: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Say whether no region is named.

    `cache_regions` counts as a region: s3fs would ignore that option if a region were named.
    """
    named = (region for name, region in _regions(options, environment) if name != "AWS_REGION")
    return not (any(named) or options.get("cache_regions"))


def _filled_config(options: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(options.get("config_kwargs") or {})
    _check_user_agent(config)
    if config.get("client_cert") is not None:
        config["client_cert"] = _client_certificate(config["client_cert"])
    for name in ("proxy_client_cert", "proxy_ca_bundle"):
        if (config.get("proxies_config") or {}).get(name):
            raise OptionError(
                f"proxies_config[{name!r}] cannot be used: s3fs's own requests would obey it, but reads would not",
                hint="Name a proxy over plain HTTP (its tunnel to an https:// server is TLS), or the host in NO_PROXY",
            )
    config.setdefault("signature_version", "s3v4")  # botocore still signs URLs with the retired SigV2 by default
    return config
