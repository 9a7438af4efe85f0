"""A gcsfs file system that records the origin of its credentials, and renews their tokens within bounded time.

Guarantees: the credentials that the user names are used. gcsfs itself becomes anonymous without a warning where it
finds none, and where default credentials are of another project than `project`; and it sends a raw token to Google, in
a URL, to check it. Each request to a token server ends within `TOKEN_TIMEOUT_S`.
"""

from __future__ import annotations

import os
import threading
import warnings
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
from streamer.core.secrets.environment import blank_variables, variable
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["EMULATOR", "Bearer", "GcsFileSystem", "bearer_of"]

TOKEN_TIMEOUT_S = 15  # google-auth itself waits 120 s, three times
METHODS = ("anon", "browser", "cache", "cloud", "google_default")  # values of gcsfs's option `token`
EMULATOR = "emulator"  # and one of ours: anonymous because requests go to an emulator, not because the user said so
SAVED_LOGIN = "application_default_credentials.json"  # where `gcloud auth application-default login` puts it
SCOPE = "https://www.googleapis.com/auth/devstorage."


@dataclass(frozen=True)
class Bearer:
    """Credentials that are sent with a request; empty for anonymous use.

    Attributes:
        headers: ``Authorization`` and, where the credentials name a project for quota, ``X-Goog-User-Project``.
        token: The token in these headers, or None.
        expires_at_s: Unix time at which the token expires, or None where that is unknown.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    expires_at_s: float | None = None


class GcsFileSystem(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """gcsfs's plain class: its other one requests a bucket's type by gRPC, which stalls where only HTTP is served.

    Args:
        token: As for gcsfs, or `EMULATOR`. None looks for Google's default credentials, then for those that gcsfs has
            cached.
        access: The scope of the token.
        key_file: The file that the environment names. It is an argument so that instances for different files differ.
        options: All other arguments of gcsfs.

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
        own = SecretOptions({**options, "token": token})
        token, options = None, {}  # a traceback shows the values of local names
        self._fill_credentials(own, access, key_file)
        super().__init__(access=access, **plain(own))
        if self.credentials.credentials is None and self.why_anonymous is None:
            self.why_anonymous = "asked"

    def _fill_credentials(self, options: SecretOptions, access: str, key_file: str | None) -> None:
        token = options["token"]
        if token == EMULATOR:
            options["token"], self.why_anonymous = "anon", EMULATOR
        elif token is None or token == "google_default":  # noqa: S105 (the name of a method)
            options["token"], project = self._default_credentials(token or key_file, access, options)
            if project is not None:
                options["project"] = project
        elif token == "cloud":  # noqa: S105 (as above)
            options["token"] = google.auth.compute_engine.Credentials()  # type: ignore[no-untyped-call]
        elif isinstance(token, str) and token not in METHODS and not os.path.exists(token):
            options["token"] = google.oauth2.credentials.Credentials(token)  # type: ignore[no-untyped-call]

    def _default_credentials(
        self, named: str | None, access: str, options: Mapping[str, Any]
    ) -> tuple[Any, str | None]:
        try:
            credentials, project = _googles_default([SCOPE + access])
        except DefaultCredentialsError:
            # Named credentials that cannot be used are an error; without them the load would go on anonymously.
            if named:
                raise
        else:
            return credentials, options.get("project") or project or ""
        cached = _cached_credentials(options, access)
        self.why_anonymous = "none found" if cached is None else None
        return cached or "anon", None


def _googles_default(scopes: list[str]) -> tuple[Any, str | None]:
    """Find Google's default credentials; a blank ``CLOUDSDK_CONFIG`` is not the working directory."""
    request: Any = _token_request()
    find: Any = google.auth.default
    if blank_variables(["CLOUDSDK_CONFIG"]) and not variable("GOOGLE_APPLICATION_CREDENTIALS"):
        saved = os.path.expanduser(f"~/.config/gcloud/{SAVED_LOGIN}")
        if os.path.isfile(saved):
            find = partial(google.auth.load_credentials_from_file, saved)
        elif os.path.exists(SAVED_LOGIN):
            reason = "unset CLOUDSDK_CONFIG: for a blank one, a file of the working directory counts"
            raise DefaultCredentialsError(reason)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of strangers' files; this is the user's own login
        found: tuple[Any, str | None] = find(scopes=scopes, request=request)
    return found


def bearer_of(fs: GcsFileSystem, refused: str | None = None) -> Bearer:
    """Return the current credentials, with a new token where the old one is about to expire.

    Args:
        fs: The file system.
        refused: A token that the server refused; it is renewed, unless another thread has done so.

    Raises:
        GoogleAuthError: the token could not be renewed, and has expired or has no expiry.
    """
    credentials = fs.credentials.credentials
    if credentials is None:
        return Bearer()
    before = credentials.token
    if not credentials.valid or (before is not None and before == refused):
        with fs.renewal:
            if credentials.token == before:  # no other thread has renewed it meanwhile
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
        # google-auth renews a token four minutes early: the old one may last until the token server works again.
        if credentials.token is None or expires_at_s is None or expires_at_s <= time():
            raise


def _expiry_s(credentials: Any) -> float | None:
    expiry = credentials.expiry  # naive, in UTC
    return expiry.replace(tzinfo=timezone.utc).timestamp() if expiry is not None else None


class _TokenSession(requests.Session):
    def merge_environment_settings(self, url: Any, *settings: Any, **named: Any) -> Any:
        merged = super().merge_environment_settings(url, *settings, **named)
        merged["verify"] = merged["verify"] or self.verify or True  # old releases take a blank variable for "no checks"
        return {**merged, "proxies": {}} if is_metadata_url(str(url)) else merged


def _token_request() -> Any:
    request = Request(_TokenSession())
    ca_file = variable("SSL_CERT_FILE")
    if ca_file:
        request.session.verify = ca_file  # REQUESTS_CA_BUNDLE still wins
    return partial(request, timeout=TOKEN_TIMEOUT_S)


def _cached_credentials(options: Mapping[str, Any], access: str) -> Any:
    """Return the credentials that gcsfs has cached after a login in a browser, for this access or full control."""
    project = options.get("project") or variable("GCSFS_DEFAULT_PROJECT") or ""
    tokens = GoogleCredentials.tokens
    return tokens.get((project, access)) or tokens.get((project, "full_control"))
