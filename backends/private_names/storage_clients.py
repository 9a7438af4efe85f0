"""The clients of storages: connectors of aiohttp, logins of azure-identity and botocore, sessions of gcsfs and s3fs.

Tried with aiohttp 3.9.5 to 3.14.5, azure-core 1.30.2 to 1.41.0, azure-identity 1.16.1 to 1.27.0, botocore 1.34.131 to
1.43.117 (its sessions also of aiobotocore 2.13.1 to 3.10.0), gcsfs 2024.6.0 to 2026.10.1, s3fs 2024.6.0 to 2026.9.0.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp
    from gcsfs.core import GCSFileSystem
    from s3fs import S3FileSystem


def connector_verifies_tls(connector: Any) -> bool:
    """Say whether a connector was made without ``ssl=False``."""
    return getattr(connector, "_ssl", True) is not False


def identity_of(credential: Any) -> Any:
    """Return the credential that a `ManagedIdentityCredential` has chosen for this machine, or None."""
    return getattr(credential, "_credential", None)


def transport_of_identity(identity: Any) -> Any:
    """Return the transport of a result of `identity_of`; None if it has no client."""
    pipeline = getattr(getattr(identity, "_client", None), "_pipeline", None)
    return getattr(pipeline, "_transport", None)


def ignore_environment(transport: Any) -> None:
    """Make a transport without a session ignore the proxies of the environment."""
    transport._use_env_settings = False


def use_no_proxy(provider: Any) -> None:
    """Make the provider of EC2's credentials (``iam-role``) send requests to the metadata server without a proxy."""
    fetcher = provider._role_fetcher
    fetcher._session = type(fetcher._session)(timeout=fetcher._timeout, proxies={})


def change_credential_provider(session: Any, change: Callable[[Any], Any]) -> None:
    """Make a session pass its chain of providers through `change`, when it first needs the chain."""
    session._components.lazy_register_component(
        "credential_provider", lambda: change(session._create_credential_resolver())
    )


def give_environment(chain: Any, environment: Mapping[str, str]) -> None:
    """Make the providers of a chain read another environment than ``os.environ``."""
    for provider in chain.providers:
        if hasattr(provider, "environ"):
            provider.environ = environment
        if hasattr(provider, "_environ"):
            provider._environ = environment
        of_role = getattr(provider, "_get_env_config", None)  # this provider has no attribute for the environment
        if of_role is not None:
            provider._get_env_config = lambda key, of_role=of_role: (of_role(key) or "").strip() or None


def give_process_starter(chain: Any, starter: Callable[[str], Callable[..., Any]]) -> None:
    """Make the provider of a chain that runs a ``credential_process`` start it by `starter` of its profile's name."""
    for provider in chain.providers:
        if getattr(provider, "_popen", None) is subprocess.Popen:  # aiobotocore's has a function of asyncio
            provider._popen = starter(provider._profile_name)


async def open_session(fs: GCSFileSystem) -> aiohttp.ClientSession:
    """Return the session of a file system; make it if there is none yet."""
    session: aiohttp.ClientSession = await fs._set_session()
    return session


def shows_certificate(fs: GCSFileSystem) -> bool:
    """Say whether the session has its own TLS settings for a client certificate; old releases have no such settings."""
    return bool(getattr(fs, "_use_client_cert", False))


def give_session(fs: S3FileSystem, session: Any) -> None:
    """Set the session of a file system, so that the file system does not replace it when it connects again."""
    fs.session, fs._session_is_owned = session, False


def is_connected(fs: S3FileSystem) -> bool:
    """Say whether a file system has made its client."""
    return fs._s3 is not None


def client_verifies_tls(fs: S3FileSystem) -> bool:
    """Say whether the client of a file system verifies certificates; True without TLS, and before it is made."""
    if fs._s3 is None or not str(fs._s3.meta.endpoint_url).lower().startswith("https:"):
        return True
    return bool(getattr(fs._s3._endpoint.http_session, "_verify", True))
