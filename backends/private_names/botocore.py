"""botocore: the environment of a session's providers, requests to the metadata server.

Tried with botocore 1.34.131 to 1.43.117, and its sessions also of aiobotocore 2.13.1 to 3.10.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


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
