"""The login of requests to S3, and how it is found without botocore if the settings are the usual ones.

botocore and fsspec read their configuration from a dozen places, which takes a third of a second. If only the usual
places hold settings, this module reads them, with the same result. Keys that are not stored in a file (of a role, a
single sign-on, a machine) are found by botocore's session, which needs no client. All other cases are left to
`botocore_login`: an unknown option, variable, or line of a file. This module raises no error for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamer.backends.client.answer_times import ATTEMPTS
from streamer.backends.fsspec_settings import are_configured
from streamer.backends.s3.signing import BucketEndpoint, Keys
from streamer.core.collector import collector_paused
from streamer.core.secrets.environment import variable

AMAZON = "aws"  # the public partition

_OPTIONS = frozenset({"anon", "client_kwargs", "endpoint_url", "key", "profile", "secret", "token"})
_OPTIONS_OF_CLIENT = frozenset({"endpoint_url", "region_name", "verify"})
_PROXIES = frozenset({"all_proxy", "http_proxy", "https_proxy"})
_LINES_OF_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_VARIABLES_OF_KEYS = tuple(line.upper() for line in _LINES_OF_KEYS)
_LINES = frozenset({*_LINES_OF_KEYS, "cli_pager", "output", "region"})
# Lines that only affect how botocore's session finds keys.
_LINES_OF_SESSION = frozenset(
    {
        *("credential_process", "credential_source", "duration_seconds", "external_id", "role_arn"),
        *("role_session_name", "source_profile", "sso_account_id", "sso_region", "sso_registration_scopes"),
        *("sso_role_name", "sso_session", "sso_start_url", "web_identity_token_file"),
    }
)
_VARIABLES = frozenset(
    {
        *_VARIABLES_OF_KEYS,
        *("AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_DEFAULT_OUTPUT", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED"),
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_MAX_ATTEMPTS", "AWS_PAGER", "AWS_PROFILE", "AWS_REGION"),
        *("AWS_RETRY_MODE", "AWS_SHARED_CREDENTIALS_FILE"),
        # Variables that only affect how a session finds keys.
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"),
        *("AWS_EC2_METADATA_V1_DISABLED", "AWS_METADATA_SERVICE_NUM_ATTEMPTS", "AWS_METADATA_SERVICE_TIMEOUT"),
        *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_STS_REGIONAL_ENDPOINTS", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    }
)
# An endpoint with more parts (a path, a user, Amazon's own name) has special rules, which are left to botocore.
_ENDPOINT = re.compile(r"https?://(?![^/]*amazonaws)[A-Za-z0-9.-]+(?::\d+)?/?", re.ASCII)
_REGION = re.compile(r"(?:af|ap|ca|eu|il|me|mx|sa|us)-[a-z]+-\d", re.ASCII)  # of the public AWS partition
_REGION_ELSEWHERE = re.compile(r"(?!aws-|fips-)[a-z0-9-]+(?<!-fips)", re.ASCII)  # such as "nyc3"; only signed
_BUCKET = re.compile(r"(?!xn--)[a-z0-9](?:[a-z0-9]|-(?!-)){1,61}[a-z0-9]", re.ASCII)  # valid in host names
_BUCKET_IN_PATH = re.compile(r"[a-z0-9](?:[a-z0-9]|[.-](?![.-])){1,61}[a-z0-9]", re.ASCII)
_DEFAULT_REGION = "us-east-1"  # botocore signs for this region if none is named


@dataclass(frozen=True)
class Login:
    """Where requests go, who sends them, and how."""

    server: str  # URL of the server, or Amazon's partition, in which the name of a bucket has one owner
    # Returns the place of a bucket, in a region that an answer named; None if botocore has to find it.
    place_of: Callable[[str, str | None], BucketEndpoint | None]
    keys: Callable[[], Keys] | None  # returns the current keys of signatures; None for anonymous requests
    ca_file: str | None  # file of certificates to trust; None for the system's certificates
    most_attempts: int  # highest number of attempts of a request
    # Settings of the user for each request that has them, by botocore's names.
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)  # headers of each request that no signature covers
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)  # proxies by scheme of the URL
    client_cert: tuple[str | None, str | None] = (None, None)  # the files of a client certificate and its key
    has_checksums: bool = True  # uploads may carry checksums that S3 does not require
    signs_payload: bool | None = None  # whether bodies are signed; None to sign what no checksum and no TLS protects


def _place_of(endpoint: str | None, own_region: str, bucket: str, region: str | None) -> BucketEndpoint | None:
    region = region or own_region
    if endpoint is not None:
        return BucketEndpoint(f"{endpoint}/{bucket}", region) if _BUCKET_IN_PATH.fullmatch(bucket) else None
    if not _BUCKET.fullmatch(bucket) or bucket.endswith("-s3alias") or not _REGION.fullmatch(region):
        return None
    in_host = "" if region == _DEFAULT_REGION else f".{region}"
    return BucketEndpoint(f"https://{bucket}.s3{in_host}.amazonaws.com", region)


def plain_login(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> Login | None:
    """Find the login that botocore would use; None if the settings are left to botocore."""
    client = {} if storage_options.get("client_kwargs") is None else storage_options["client_kwargs"]
    if not _are_plain(storage_options, client) or _is_configured_otherwise(environment):
        return None
    sections = _sections_of_profile(storage_options.get("profile") or environment.get("AWS_PROFILE"), environment)
    attempts = environment.get("AWS_MAX_ATTEMPTS") or str(ATTEMPTS)
    if sections is None or not (attempts.isascii() and attempts.isdigit() and int(attempts)):
        return None
    is_anonymous = storage_options.get("anon") is True
    keys = None if is_anonymous else _keys(storage_options, environment, sections)
    if keys is None and not is_anonymous:
        return None
    endpoint = _first(
        storage_options.get("endpoint_url"),
        client.get("endpoint_url"),
        environment.get("AWS_ENDPOINT_URL_S3"),
        environment.get("AWS_ENDPOINT_URL"),
    )
    region = _first(
        client.get("region_name"),
        environment.get("AWS_DEFAULT_REGION"),
        environment.get("AWS_REGION"),
        *(section.get("region") for section in sections),
        _DEFAULT_REGION,
    )
    regions = _REGION if endpoint is None else _REGION_ELSEWHERE
    if not (region and regions.fullmatch(region) and (endpoint is None or _ENDPOINT.fullmatch(endpoint))):
        return None
    ca_file = ca_file_of(client.get("verify"), environment)
    if ca_file and not _has_certificates(ca_file):
        return None  # botocore's client raises the error
    endpoint = endpoint and endpoint.removesuffix("/")
    return Login(endpoint or AMAZON, partial(_place_of, endpoint, region), keys, ca_file, int(attempts))


def ca_file_of(verify: object, environment: Mapping[str, str], configured: str | None = None) -> str | None:
    """Return the first file that is named, in botocore's order and with ``SSL_CERT_FILE``; None for the system's."""
    if isinstance(verify, (str, os.PathLike)) and os.fspath(verify):
        return os.fspath(verify)
    aws, ours, requests = (
        variable(name, environment) for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    )
    return aws or ours or configured or requests


def _has_certificates(path: str) -> bool:
    """Say whether a PEM file holds certificates, without parsing: that takes 20 ms for a system's bundle."""
    try:
        with open(path, "rb") as file:
            return b"CERTIFICATE-----" in file.read()
    except OSError:
        return False


def _first(*values: str | None) -> str | None:
    return next((value for value in values if value), None)


def _are_plain(options: Mapping[str, Any], client: object) -> bool:
    return (
        isinstance(client, Mapping)
        and options.keys() <= _OPTIONS
        and client.keys() <= _OPTIONS_OF_CLIENT
        and isinstance(options.get("anon", False), bool)
        and _are_texts(options, _OPTIONS - {"anon", "client_kwargs"})
        and _are_texts(client, _OPTIONS_OF_CLIENT)
        and not (options.get("endpoint_url") and client.get("endpoint_url"))
    )


def _are_texts(options: Mapping[str, Any], names: frozenset[str]) -> bool:
    """Say whether each option is a text or None.

    An empty text counts as neither, because no value from another place may replace it.
    """
    return all(options.get(name) is None or (isinstance(options[name], str) and options[name]) for name in names)


def _is_configured_otherwise(environment: Mapping[str, str]) -> bool:
    """Say whether a variable or fsspec's own configuration may hold a setting that this module does not read."""
    for name in environment:
        is_ours = name.startswith(("AWS_", "BOTO_", "FSSPEC_"))
        if is_ours and name not in _VARIABLES:
            return True
        # libcurl and Python have different rules for proxies: HTTP_PROXY, networks in NO_PROXY.
        if name.lower() in _PROXIES:
            return True
    return are_configured("s3", "s3a", variables=environment)


def _sections_of_profile(profile: str | None, environment: Mapping[str, str]) -> list[Mapping[str, str]] | None:
    """Return a profile's sections of the files of credentials and configuration, or None to leave it to botocore."""
    credentials = _section(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", profile or "default")
    in_config = f"profile {profile}" if profile and profile != "default" else "default"
    config = _section(environment.get("AWS_CONFIG_FILE") or "~/.aws/config", in_config)
    if credentials is None or config is None or not credentials.keys() | config.keys() <= _LINES | _LINES_OF_SESSION:
        return None
    return None if profile and not credentials and not config else [credentials, config]


def _section(path: str, name: str) -> Mapping[str, str] | None:
    """Return one section of a file, empty if there is none; None if the file cannot be parsed here."""
    path = os.path.expandvars(os.path.expanduser(path))
    if not os.path.isfile(path):
        return {}
    from configparser import Error, RawConfigParser  # noqa: PLC0415 (keys are often written elsewhere)

    parser = RawConfigParser(default_section="")  # without a default section, like botocore's parser
    try:
        parser.read(path, encoding="utf-8")
    except (Error, OSError, UnicodeError):
        return None
    if f"profile {name}" in parser:  # such as [profile default] beside [default]
        return None
    section = dict(parser[name]) if name in parser else {}
    is_plain = all(value and "\n" not in value for value in section.values())
    return section if is_plain else None


def _keys(
    options: Mapping[str, Any], environment: Mapping[str, str], sections: list[Mapping[str, str]]
) -> Callable[[], Keys] | None:
    """Return a function that gives the keys of the first place with any, or of a session; None if a key is missing."""
    has_profile = options.get("profile") is not None  # botocore then prefers the profile to variables
    asks_session = has_profile or any(_LINES_OF_SESSION & section.keys() for section in sections)
    places = [tuple(map(options.get, ("key", "secret", "token")))]
    places += [] if has_profile else [tuple(map(environment.get, _VARIABLES_OF_KEYS))]
    places += [] if asks_session or "AWS_ROLE_ARN" in environment else [_keys_in(section) for section in sections]
    for key, secret, token in places:
        if any(each and each != each.strip() for each in (key, secret, token)):
            return None  # botocore's client raises the error
        if key or secret or token:
            keys = Keys(key, secret, token or None) if key and secret else None
            return None if keys is None else partial(_same, keys)
    return partial(keys_of_session, options.get("profile"))


def _same(keys: Keys) -> Keys:
    return keys


def _keys_in(section: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(map(section.get, _LINES_OF_KEYS))


def keys_of_session(profile: str | None) -> Keys:
    """Return the keys that botocore's session finds; it renews them before they expire."""
    with collector_paused():
        from streamer.backends.s3.botocore_login import keys_in, shared_session  # noqa: PLC0415 (it takes 0.1 s)
    return keys_in(shared_session(profile))
