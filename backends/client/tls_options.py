"""Refuses options of aiohttp that switch the verification of certificates off, also in nested options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer.backends.private_names.aiohttp import verifies_tls
from streamer.core.errors import OptionError

__all__ = ["check_tls_is_verified"]

_SWITCHES = ("verify", "ssl", "verify_ssl")


def check_tls_is_verified(options: Mapping[str, Any]) -> None:
    """Check the arguments of an HTTP file system, and its ``client_kwargs``.

    Raises:
        OptionError: TLS would not be verified.
    """
    client = options.get("client_kwargs")
    connector = client.get("connector") if isinstance(client, Mapping) else None
    if any(options.get(name) is False for name in _SWITCHES) or not verifies_tls(connector):
        raise OptionError(
            "Unverified TLS is refused",
            hint="Name the CA instead: storage_options={'verify': '/path/ca.pem'}, or SSL_CERT_FILE=/path/ca.pem",
        )
