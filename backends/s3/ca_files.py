"""Finds the file of certificates that a load from S3 trusts: one rule for botocore, the engine and plain requests."""

from __future__ import annotations

import os
from collections.abc import Mapping

from streamer.core.secrets.environment import variable

__all__ = ["ca_file_of"]


def ca_file_of(verify: object, environment: Mapping[str, str], configured: str | None = None) -> str | None:
    """Return the first file that is named, in botocore's order; ``SSL_CERT_FILE`` is our addition.

    Args:
        verify: The option ``verify`` of ``client_kwargs``.
        environment: Variables of this process.
        configured: ``ca_bundle`` of the profile, if it was read; ``AWS_CA_BUNDLE`` comes before it.

    Returns:
        The path; None for the system's certificates.
    """
    if isinstance(verify, (str, os.PathLike)) and os.fspath(verify):
        return os.fspath(verify)
    aws, ours, requests = (
        variable(name, environment) for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    )
    return aws or ours or configured or requests
