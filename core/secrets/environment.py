"""Reads environment variables, and the secrets that they hold for clients of storages.

A blank variable counts as unset: build tools, charts and ``.env`` files leave ``AWS_CA_BUNDLE=`` if they have no
value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

# Credentials that the clients of S3, Azure and the Hub read, and peers. Names of accounts and key ids are no secrets.
CREDENTIALS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_CLIENT_SECRET",
    "AZURE_PASSWORD",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "STREAMER_PEERS_TOKEN",
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def is_blank(value: object) -> bool:
    """Say whether a value is empty text or only spaces, as of a variable without a value."""
    return isinstance(value, str) and not value.strip()


def variable(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return one variable, of this process or of `environment`; None if it is unset or blank.

    Example:
        >>> variable("HOME", {"HOME": "/root"}), variable("HF_ENDPOINT", {"HF_ENDPOINT": ""})
        ('/root', None)
    """
    value = os.environ.get(name) if environment is None else environment.get(name)
    return None if is_blank(value) else value


def set_variables() -> dict[str, str]:
    """Return a copy of this process's environment without blank variables."""
    return {name: value for name, value in os.environ.items() if not is_blank(value)}


def blank_variables(names: Iterable[str]) -> list[str]:
    """Return the names among `names` whose variables are set but blank."""
    return [name for name in names if is_blank(os.environ.get(name))]


def secrets_of_environment() -> Iterator[str]:
    """Yield the secrets that clients of storages read from the environment: credentials, and URLs of proxies."""
    for name in CREDENTIALS:
        if os.environ.get(name):
            yield os.environ[name]
    for name in PROXIES:
        if "@" in os.environ.get(name, ""):
            yield os.environ[name] if "://" in os.environ[name] else f"http://{os.environ[name]}"
