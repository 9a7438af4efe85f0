"""azure-core and azure-identity: proxies of logins.

Tried with azure-core 1.30.2 to 1.41.0, azure-identity 1.16.1 to 1.27.0.
"""

from __future__ import annotations

from typing import Any


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
