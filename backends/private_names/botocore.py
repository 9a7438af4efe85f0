"""botocore: the signer of a client, the time of a signature, the metadata server.

Tried with botocore 1.34.131 to 1.43.117, and its sessions also of aiobotocore 2.13.1 to 3.10.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "change_before_signing",
    "change_credential_provider",
    "give_environment",
    "request_signer",
    "use_no_proxy",
]


def request_signer(client: Any) -> Any:
    """Return the `RequestSigner` of a client, which is documented; how to get at it is not."""
    return client._request_signer


def change_before_signing(auth: Any, change: Callable[[Any], None]) -> None:
    """Have SigV4 call `change` with a request that has its time and no signature yet; other signers never do."""
    prepare = getattr(auth, "_modify_request_before_signing", None)
    if prepare is None:
        return

    def changed(request: Any) -> None:
        change(request)
        prepare(request)

    auth._modify_request_before_signing = changed


def use_no_proxy(provider: Any) -> None:
    """Have the provider of EC2's credentials (``iam-role``) ask the metadata server itself."""
    fetcher = provider._role_fetcher
    fetcher._session = type(fetcher._session)(timeout=fetcher._timeout, proxies={})


def change_credential_provider(session: Any, change: Callable[[Any], Any]) -> None:
    """Have a session use what `change` makes of its chain of providers, when it needs that for the first time."""
    session._components.lazy_register_component(
        "credential_provider", lambda: change(session._create_credential_resolver())
    )


def give_environment(chain: Any, environment: Mapping[str, str]) -> None:
    """Have the providers of a chain read another environment than ``os.environ``."""
    for provider in chain.providers:
        if hasattr(provider, "environ"):
            provider.environ = environment
        if hasattr(provider, "_environ"):
            provider._environ = environment
        of_role = getattr(provider, "_get_env_config", None)  # the one provider that has no attribute for it
        if of_role is not None:
            provider._get_env_config = lambda key, of_role=of_role: (of_role(key) or "").strip() or None
