"""A gcsfs file system that knows how it came by its credentials, and renews their tokens within bounded time.

Guarantees: what the user named is what is used. gcsfs alone becomes anonymous, without a word, where it finds nothing;
asks Google about a raw token (with the token in the URL); and refuses default credentials of another project than
`project`, to become anonymous again. A wait for a token ends: each request to a token server within `TOKEN_TIMEOUT_S`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timezone
from functools import partial
from time import time
from typing import Any

import google.auth
import google.auth.compute_engine
import google.oauth2.credentials
import requests
from gcsfs.core import GCSFileSystem
from gcsfs.credentials import GoogleCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request

from streamer.backends.metadata_servers import is_metadata_url
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["EMULATOR", "Bearer", "GcsFileSystem", "bearer_of"]

TOKEN_TIMEOUT_S = 15  # google-auth itself would wait 120 s, and asks three times
METHODS = ("anon", "browser", "cache", "cloud", "google_default")  # the words that gcsfs takes for `token`
EMULATOR = "emulator"  # and one of ours: anonymous, because an emulator is asked, not because the user said so
SCOPE = "https://www.googleapis.com/auth/devstorage."


@dataclass(frozen=True)
class Bearer:
    """What is sent to prove who asks; nothing for anonymous use.

    Attributes:
        headers: ``Authorization`` and, where the credentials name a project for quota, ``X-Goog-User-Project``.
        token: The token in them, or None.
        expires_at_s: Unix time when it ends, or None where it does not say.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    expires_at_s: float | None = None


class GcsFileSystem(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs's plain class: the other one asks for a bucket's kind by gRPC, which stalls where only HTTP is served.

    Args:
        token: As gcsfs takes it, or `EMULATOR`. None looks for Google's default credentials, then for those gcsfs
            has cached.
        access: The scope to ask for; nothing is written here, so reading will do.
        key_file: The file that the environment names, so that fsspec, which keeps an instance for every set of
            options, keeps another for another file.
        options: All else that gcsfs takes.

    Attributes:
        why_anonymous: ``"asked"``, ``"emulator"`` or ``"none found"``, or None with credentials.
        renewal: Held while a token is renewed.

    Raises:
        GoogleAuthError: credentials were named, and cannot be used.
    """

    def __init__(
        self, *, token: Any = None, access: str = "read_only", key_file: str | None = None, **options: Any
    ) -> None:
        self.why_anonymous: str | None = None
        self.renewal = threading.Lock()
        given = SecretOptions({**options, "token": token})
        token, options = None, {}  # a traceback shows what names stand for
        self._fill_credentials(given, access, key_file)
        super().__init__(access=access, **plain(given))
        if self.credentials.credentials is None and self.why_anonymous is None:
            self.why_anonymous = "asked"

    def _fill_credentials(self, given: SecretOptions, access: str, key_file: str | None) -> None:
        token = given["token"]
        if token == EMULATOR:
            given["token"], self.why_anonymous = "anon", EMULATOR
        elif token is None or token == "google_default":  # noqa: S105 (the name of a method)
            given["token"], project = self._default_credentials(token or key_file, access, given)
            if project is not None:
                given["project"] = project
        elif token == "cloud":  # noqa: S105 (another one)
            given["token"] = google.auth.compute_engine.Credentials()  # type: ignore[no-untyped-call]
        elif isinstance(token, str) and token not in METHODS and not os.path.exists(token):
            given["token"] = google.oauth2.credentials.Credentials(token)  # type: ignore[no-untyped-call]

    def _default_credentials(
        self, named: str | None, access: str, options: Mapping[str, Any]
    ) -> tuple[Any, str | None]:
        try:
            found, project = google.auth.default(scopes=[SCOPE + access], request=_token_request())
        except DefaultCredentialsError:
            # What was named and is unusable is a mistake to tell, not a reason to go on without credentials.
            if named:
                raise
        else:
            return found, options.get("project") or project or ""
        cached = _cached_credentials(options, access)
        self.why_anonymous = "none found" if cached is None else None
        return cached or "anon", None


def bearer_of(fs: GcsFileSystem, refused: str | None = None) -> Bearer:
    """Return the credentials of this moment, with a new token where the old one is about to end.

    Args:
        fs: The file system.
        refused: A token that will not do any more; another is got, unless another thread has it already.

    Raises:
        GoogleAuthError: the token could not be renewed, and its time is over or unknown.
    """
    credentials = fs.credentials.credentials
    if credentials is None:
        return Bearer()
    seen = credentials.token
    if not credentials.valid or (seen is not None and seen == refused):
        with fs.renewal:
            if credentials.token == seen:  # nobody renewed it while we waited
                _renew(credentials)
    headers: dict[str, str] = {}
    credentials.apply(headers)
    expiry = _expiry_s(credentials)
    return Bearer({name.title(): value for name, value in headers.items()}, credentials.token, expiry)


def _renew(credentials: Any) -> None:
    try:
        credentials.refresh(_token_request())
    except GoogleAuthError:
        expires_at_s = _expiry_s(credentials)
        # google-auth calls a token old four minutes early: what is left of it may carry over a token server's failure.
        if credentials.token is None or expires_at_s is None or expires_at_s <= time():
            raise


def _expiry_s(credentials: Any) -> float | None:
    expiry = credentials.expiry  # naive, in UTC
    return expiry.replace(tzinfo=timezone.utc).timestamp() if expiry is not None else None


class _TokenSession(requests.Session):
    def merge_environment_settings(self, url: Any, *settings: Any, **named: Any) -> Any:
        merged = super().merge_environment_settings(url, *settings, **named)
        return {**merged, "proxies": {}} if is_metadata_url(str(url)) else merged


def _token_request() -> Any:
    request = Request(_TokenSession())
    if os.environ.get("SSL_CERT_FILE"):
        request.session.verify = os.environ["SSL_CERT_FILE"]  # REQUESTS_CA_BUNDLE still wins
    return partial(request, timeout=TOKEN_TIMEOUT_S)


def _cached_credentials(options: Mapping[str, Any], access: str) -> Any:
    """Look where gcsfs keeps what it got from a browser, under the access it got it for."""
    project = options.get("project") or os.environ.get("GCSFS_DEFAULT_PROJECT", "")
    tokens = GoogleCredentials.tokens
    return tokens.get((project, access)) or tokens.get((project, "full_control"))
