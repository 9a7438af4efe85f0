"""The secrets that the environment holds for clients of storages, and how one variable is read.

No frame of this package keeps ``os.environ`` in a local variable: a traceback with locals would show all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

__all__ = ["secrets_of_environment", "variable"]

# From these the clients of S3, Azure and the Hub read their credentials. Names of accounts and key ids are no secrets.
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
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def variable(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Read one variable, of this process or of `environment`.

    Example:
        >>> variable("HOME", {"HOME": "/root"})
        '/root'
    """
    return os.environ.get(name) if environment is None else environment.get(name)


def secrets_of_environment() -> Iterator[str]:
    """Give what clients of storages read from this process's environment: credentials, and URLs of proxies."""
    for name in CREDENTIALS:
        if os.environ.get(name):
            yield os.environ[name]
    for name in PROXIES:
        if "@" in os.environ.get(name, ""):
            yield os.environ[name] if "://" in os.environ[name] else f"http://{os.environ[name]}"
