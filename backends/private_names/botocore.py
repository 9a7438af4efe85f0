"""botocore and aiobotocore: the sessions under a client, its signer, the time of a signature, the metadata server.

Tried with botocore 1.34.131 to 1.43.117 and aiobotocore 2.13.1 to 3.10.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["change_before_signing", "replace_sessions", "request_signer", "use_no_proxy"]


def replace_sessions(client: Any, wrap: Callable[[Any], Any]) -> None:
    """Have a client of aiobotocore send its requests through what `wrap` makes of its function that gives a session.

    A client that does not use aiohttp has no such function, and is left alone. `wrap` gives back what it has made.
    """
    http_session = client._endpoint.http_session
    sessions = getattr(http_session, "_get_session", None)
    if sessions is not None:
        http_session._get_session = wrap(sessions)


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
