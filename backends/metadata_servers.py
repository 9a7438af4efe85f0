"""Sends requests to metadata servers, which give a cloud's machines their credentials, without a proxy.

From a proxy, the address of a metadata server leads to another machine: that machine does not answer, or answers with
its own credentials. The libraries of the clouds still use ``HTTP_PROXY``, unless ``NO_PROXY`` names each address.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from streamer.backends.private_names.storage_clients import (
    identity_of,
    ignore_environment,
    transport_of_identity,
    use_no_proxy,
)
from streamer.core.secrets.environment import variable

# Most metadata servers have link-local addresses; these servers have other addresses.
ADDRESSES = (
    ipaddress.ip_address("fd00:ec2::254"),  # Amazon's machines
    ipaddress.ip_address("fd00:ec2::23"),  # Amazon's containers (tasks and pods)
    ipaddress.ip_address("168.63.129.16"),  # Azure's wire server
    ipaddress.ip_address("100.100.100.200"),  # Alibaba's
    ipaddress.ip_address("192.0.0.192"),  # Oracle's
    ipaddress.ip_address("fd00:c1::a9fe:a9fe"),
    ipaddress.ip_address("fd20:ce::254"),  # Google's
    ipaddress.ip_address("fd00:42::42"),  # Scaleway's
)
GOOGLE_HOSTS = ("metadata.google.internal", "metadata.goog", "metadata")


def is_metadata_url(url: str) -> bool:
    """Say whether a URL leads to a metadata server.

    Example:
        >>> [is_metadata_url(url) for url in ("http://169.254.169.254/x", "https://oauth2.googleapis.com/token")]
        [True, False]
    """
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_link_local or is_metadata_host(host)
    return is_metadata_host(host)


def is_metadata_host(host: str) -> bool:
    """Say whether a host is a metadata server without a link-local address; names are compared, not looked up.

    Example:
        >>> [is_metadata_host(host) for host in ("metadata.google.internal", "fd00:ec2::254", "example.com")]
        [True, True, False]
    """
    if host.rstrip(".").lower() in GOOGLE_HOSTS:
        return True
    named = (variable(name) for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"))
    if any(host == urlsplit(f"//{each}").hostname for each in named if each):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ADDRESSES
    return False


def ask_aws_directly(chain: Any) -> None:
    """Make botocore's chain of credential providers send requests to EC2's metadata server without a proxy.

    botocore's requests to the metadata servers of containers never use a proxy.
    """
    from botocore.exceptions import UnknownCredentialError  # noqa: PLC0415  only S3 needs it

    with suppress(UnknownCredentialError):
        use_no_proxy(chain.get_provider("iam-role"))


def ask_azure_directly(credential: Any) -> None:
    """Make azure-identity's chain request managed identities without a proxy; its other requests may need one."""
    from azure.identity.aio import ManagedIdentityCredential, WorkloadIdentityCredential  # noqa: PLC0415  see above

    for each in getattr(credential, "credentials", ()):
        if not isinstance(each, ManagedIdentityCredential):
            continue
        identity = identity_of(each)
        transport = transport_of_identity(identity)
        if transport is not None and not isinstance(identity, WorkloadIdentityCredential):
            ignore_environment(transport)  # in time: the transport has no session before its first request
