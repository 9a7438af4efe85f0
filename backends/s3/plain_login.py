"""Finds the login of a plain load: static keys, and an endpoint and region that nothing else changes.

botocore and fsspec take their configuration from a dozen places, and need a third of a second to read it. Where only
the usual ones say anything, what they say is found here, as they would find it. Everything else is left to them: a
role, an option that is not known here, a variable, a line of a file. Nothing here is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from configparser import Error, RawConfigParser
from dataclasses import dataclass, field
from typing import Any

from streamer.backends.fsspec_settings import are_configured
from streamer.backends.s3.ca_files import ca_file_of

__all__ = ["PlainLogin", "StaticKeys", "plain_login"]

_OPTIONS = frozenset({"anon", "client_kwargs", "endpoint_url", "key", "secret", "token"})
_OPTIONS_OF_CLIENT = frozenset({"endpoint_url", "region_name", "verify"})
_PROXIES = frozenset({"all_proxy", "http_proxy", "https_proxy"})
_LINES_OF_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_VARIABLES_OF_KEYS = tuple(line.upper() for line in _LINES_OF_KEYS)
_LINES = frozenset({*_LINES_OF_KEYS, "cli_pager", "output", "region"})
_VARIABLES = frozenset(
    {
        *_VARIABLES_OF_KEYS,
        "AWS_CA_BUNDLE",
        "AWS_CONFIG_FILE",
        "AWS_DEFAULT_OUTPUT",
        "AWS_DEFAULT_REGION",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_MAX_ATTEMPTS",
        "AWS_PAGER",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_RETRY_MODE",
        "AWS_SHARED_CREDENTIALS_FILE",
    }
)
# Anything more (a path, a user, Amazon's own name) has rules of its own.
_ENDPOINT = re.compile(r"https?://(?![^/]*amazonaws)[A-Za-z0-9.-]+(?::\d+)?/?", re.ASCII)
_REGION = re.compile(r"(?:af|ap|ca|eu|il|me|mx|sa|us)-[a-z]+-\d", re.ASCII)  # of the usual partition
_REGION_ELSEWHERE = re.compile(r"(?!aws-|fips-)[a-z0-9-]+(?<!-fips)", re.ASCII)  # "auto", "nyc3"; it is only signed
_BUCKET = re.compile(r"(?!xn--)[a-z0-9](?:[a-z0-9]|-(?!-)){1,61}[a-z0-9]", re.ASCII)  # any host name may begin with it
_BUCKET_IN_PATH = re.compile(r"[a-z0-9](?:[a-z0-9]|[.-](?![.-])){1,61}[a-z0-9]", re.ASCII)
_DEFAULT_REGION = "us-east-1"  # for which botocore signs where none is named


@dataclass(frozen=True)
class StaticKeys:
    """Keys that do not change during a load, under the names that botocore's signers use."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PlainLogin:
    """How to reach buckets.

    Attributes:
        endpoint: URL of the server; None for Amazon's own.
        region: What signatures are made for.
        keys: What they are made with; None for anonymous requests.
        ca_file: Certificates to trust; None for the system's.
    """

    endpoint: str | None
    region: str
    keys: StaticKeys | None
    ca_file: str | None

    def url_of(self, bucket: str) -> str | None:
        """Return the URL of a bucket without a slash at its end; None where botocore has to find it."""
        if self.endpoint is not None:
            return f"{self.endpoint}/{bucket}" if _BUCKET_IN_PATH.fullmatch(bucket) else None
        if not _BUCKET.fullmatch(bucket) or bucket.endswith("-s3alias"):
            return None
        region = "" if self.region == _DEFAULT_REGION else f".{self.region}"
        return f"https://{bucket}.s3{region}.amazonaws.com"


def plain_login(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> PlainLogin | None:
    """Find the login that s3fs and botocore would use.

    Args:
        storage_options: Arguments of `s3fs.S3FileSystem`.
        environment: Of this process, without blank variables.

    Returns:
        None where they have to be asked.
    """
    client = storage_options.get("client_kwargs") or {}
    if not _are_plain(storage_options, client) or _is_configured_otherwise(environment):
        return None
    sections = _sections_of_profile(environment)
    if sections is None:
        return None
    keys = _keys(storage_options, environment, sections)
    is_anonymous = storage_options.get("anon") is True
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
    known = _REGION if endpoint is None else _REGION_ELSEWHERE
    if not (region and known.fullmatch(region) and (endpoint is None or _ENDPOINT.fullmatch(endpoint))):
        return None
    ca_file = ca_file_of(client.get("verify"), environment)
    if ca_file and not _has_certificates(ca_file):
        return None  # an error says so
    return PlainLogin(endpoint and endpoint.removesuffix("/"), region, None if is_anonymous else keys, ca_file)


def _has_certificates(path: str) -> bool:
    """Look at a PEM file without parsing it, which takes 20 ms for a system's bundle."""
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
    """Whether each has a text or None. An empty text is something else: an empty key is not the next place's key."""
    return all(options.get(name) is None or (isinstance(options[name], str) and options[name]) for name in names)


def _is_configured_otherwise(environment: Mapping[str, str]) -> bool:
    """Whether a variable, or fsspec's own configuration, may say more than is looked at here."""
    for name in environment:
        is_ours = name.startswith(("AWS_", "BOTO_", "FSSPEC_"))
        if is_ours and name not in _VARIABLES:
            return True
        # Whether a proxy counts is not the same for libcurl and for Python: HTTP_PROXY, networks in NO_PROXY.
        if name.lower() in _PROXIES:
            return True
    return are_configured("s3", "s3a", variables=environment)


def _sections_of_profile(environment: Mapping[str, str]) -> list[Mapping[str, str]] | None:
    """Return what the files of credentials and of the configuration say of the profile, or None to ask botocore."""
    profile = environment.get("AWS_PROFILE")
    credentials = _section(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", profile or "default")
    in_config = f"profile {profile}" if profile and profile != "default" else "default"
    config = _section(environment.get("AWS_CONFIG_FILE") or "~/.aws/config", in_config)
    if credentials is None or config is None or not credentials.keys() | config.keys() <= _LINES:
        return None
    return None if profile and not credentials and not config else [credentials, config]


def _section(path: str, name: str) -> Mapping[str, str] | None:
    """Return one section of a file, empty where there is none; None where the file cannot be understood."""
    path = os.path.expandvars(os.path.expanduser(path))
    if not os.path.isfile(path):
        return {}
    parser = RawConfigParser(default_section="")  # as botocore's, which has none
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
) -> StaticKeys | None:
    """Take keys from the first place that has one, which must have both."""
    places = [
        tuple(map(options.get, ("key", "secret", "token"))),
        tuple(map(environment.get, _VARIABLES_OF_KEYS)),
        *(tuple(map(section.get, _LINES_OF_KEYS)) for section in sections),
    ]
    for key, secret, token in places:
        if any(each and each != each.strip() for each in (key, secret, token)):
            return None  # an error says so
        if key or secret or token:
            return StaticKeys(key, secret, token or None) if key and secret else None
    return None
