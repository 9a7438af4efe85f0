"""Sends google-auth's requests for tokens; a separate module, so that requests is imported only if a token is needed.

Guarantees: each request ends within `TOKEN_TIMEOUT_S`, and a request to a metadata server uses no proxy.
"""

from __future__ import annotations

from typing import Any

import requests
from google.auth.transport.requests import Request

from streamer.backends.metadata_servers import is_metadata_url
from streamer.core.secrets.environment import variable

TOKEN_TIMEOUT_S = 15  # google-auth itself waits 120 s, three times


def ask_token_server(*arguments: Any, **named: Any) -> Any:
    """Send a request as google-auth's own `Request` does."""
    with _TokenSession() as session:
        session.verify = variable("SSL_CERT_FILE") or session.verify  # REQUESTS_CA_BUNDLE still wins
        return Request(session)(*arguments, **{"timeout": TOKEN_TIMEOUT_S, **named})


class _TokenSession(requests.Session):
    def merge_environment_settings(self, url: Any, *settings: Any, **named: Any) -> Any:
        merged = super().merge_environment_settings(url, *settings, **named)
        merged["verify"] = merged["verify"] or self.verify or True  # old releases read a blank variable as "no checks"
        return {**merged, "proxies": {}} if is_metadata_url(str(url)) else merged
