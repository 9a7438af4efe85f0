"""Google credentials as the options of gcsfs name them; loads with equal options share one login and its token.

Guarantees: the credentials that the user names are used. gcsfs itself silently sends anonymous requests if it finds no
credentials, or if the default credentials belong to another project than `project`. It also sends a raw token to
Google, in a URL, to check it. Each request to a token server ends within `TOKEN_TIMEOUT_S`. Modules that take long to
import are imported when a login needs them.

After a change of the environment or of a file of credentials, a load does not use a login from before the change. The
last `KEPT` logins are kept; they hold no connection.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timezone
from functools import partial
from time import time
from typing import Any

import google.auth
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError

from streamer.backends.login_state import key_of, login_state
from streamer.core.secrets.environment import blank_variables, variable

METHODS = ("anon", "browser", "cache", "cloud", "google_default")  # values of gcsfs's option `token`
EMULATOR = "emulator"  # our own value: anonymous because requests go to an emulator, not because the user chose it
SAVED_LOGIN = "application_default_credentials.json"  # written by `gcloud auth application-default login`
SCOPE = "https://www.googleapis.com/auth/devstorage."

KEPT = 8  # a job uses a few logins in turn
OPTIONS = ("access", "key_file", "project", "token")


@dataclass(frozen=True)
class Bearer:
    """Credentials that are sent with a request; empty for anonymous use."""

    # ``Authorization`` and, if the credentials name a project for quota, ``X-Goog-User-Project``.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)  # the token in these headers, or None
    expires_at_s: float | None = None  # Unix time at which the token expires, or None if it is unknown


class GoogleLogin:
    """The credentials that the options of gcsfs name."""

    def __init__(
        self, *, token: Any = None, access: str = "read_only", key_file: str | None = None, project: str | None = None
    ) -> None:
        # ``"asked"`` (by the user), ``"emulator"`` or ``"none found"``; None with credentials.
        self.why_anonymous: str | None = None
        self.renewal = threading.Lock()  # lock that is held while a token is renewed
        # The user's project, or else the project of the credentials.
        self.project = project or variable("GCSFS_DEFAULT_PROJECT") or ""
        self.credentials: Any = self._credentials(token, access, key_file)  # credentials of google-auth, or None
        if self.credentials is None and self.why_anonymous is None:
            self.why_anonymous = "asked"

    def _credentials(self, token: Any, access: str, key_file: str | None) -> Any:
        kind = token if token in (EMULATOR, *METHODS) else None
        if kind == EMULATOR:
            self.why_anonymous = EMULATOR
        if kind in (EMULATOR, "anon"):
            return None
        if token is None or kind == "google_default":
            return self._default_credentials(kind or key_file, access)
        if kind == "cloud":
            from google.auth import compute_engine  # noqa: PLC0415  the import takes 60 ms

            return compute_engine.Credentials()  # type: ignore[no-untyped-call]
        if kind is None and isinstance(token, str) and not os.path.exists(token):
            return RawToken(token)
        if isinstance(token, Credentials):
            return token
        account = None if kind else _service_account(token, access)
        return account or _of_gcsfs(token, self.project, access)

    def _default_credentials(self, named: str | None, access: str) -> Any:
        try:
            credentials, project = _googles_default([SCOPE + access])
        except DefaultCredentialsError:
            # If named credentials cannot be used, this is an error: the load must not continue anonymously.
            if named:
                raise
        else:
            self.project = self.project or project or ""
            return credentials
        cached = _cached_credentials(self.project, access)
        self.why_anonymous = "none found" if cached is None else None
        return cached


class RawToken(Credentials):
    """An access token that cannot be renewed; google-auth's class for such tokens takes 150 ms to import."""

    def __init__(self, token: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = token

    def refresh(self, _request: Any) -> None:
        """Refuse to renew the token."""
        raise RefreshError("an access token alone cannot be renewed")  # type: ignore[no-untyped-call]


def _service_account(token: Any, access: str) -> Any:
    """Read the key of a service account; None for any other content."""
    from google.oauth2 import service_account  # noqa: PLC0415  the import takes 150 ms

    cls = service_account.Credentials
    make: Any = cls.from_service_account_file if isinstance(token, str) else cls.from_service_account_info
    try:
        return make(token, scopes=[SCOPE + access])
    except Exception:  # gcsfs reads the other kinds of tokens, and raises for an invalid one
        return None


def _of_gcsfs(token: Any, project: str, access: str) -> Any:
    """Return the credentials that gcsfs makes of a token: the login of a user, in a file or a browser."""
    from gcsfs.credentials import GoogleCredentials  # noqa: PLC0415  it takes 0.4 s

    return GoogleCredentials(project, access, token).credentials


def _googles_default(scopes: list[str]) -> tuple[Any, str | None]:
    """Return Google's default credentials; a blank ``CLOUDSDK_CONFIG`` does not mean the working directory."""
    find: Any = google.auth.default
    if blank_variables(["CLOUDSDK_CONFIG"]) and not variable("GOOGLE_APPLICATION_CREDENTIALS"):
        saved = os.path.expanduser(f"~/.config/gcloud/{SAVED_LOGIN}")
        if os.path.isfile(saved):
            find = partial(google.auth.load_credentials_from_file, saved)
        elif os.path.exists(SAVED_LOGIN):
            reason = "unset CLOUDSDK_CONFIG: if it is blank, google-auth reads a file of the working directory"
            raise DefaultCredentialsError(reason)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about untrusted files; this file is the user's
        login: tuple[Any, str | None] = find(scopes=scopes, request=_ask_token_server)
    return login


def bearer_of(login: GoogleLogin, refused: str | None = None) -> Bearer:
    """Return the current credentials, with a new token if the old one is about to expire."""
    credentials = login.credentials
    if credentials is None:
        return Bearer()
    before = credentials.token
    if not credentials.valid or (before is not None and before == refused):
        with login.renewal:
            if credentials.token == before:  # no other thread has renewed the token meanwhile
                _renew(credentials)
    headers: dict[str, str] = {}
    credentials.apply(headers)
    expiry = _expiry_s(credentials)
    return Bearer({name.title(): value for name, value in headers.items()}, credentials.token, expiry)


def _renew(credentials: Any) -> None:
    try:
        credentials.refresh(_ask_token_server)
    except GoogleAuthError:
        expires_at_s = _expiry_s(credentials)
        # google-auth renews a token four minutes early: the old one may last until the token server works again.
        if credentials.token is None or expires_at_s is None or expires_at_s <= time():
            raise


def _expiry_s(credentials: Any) -> float | None:
    expiry = credentials.expiry  # naive, in UTC
    return expiry.replace(tzinfo=timezone.utc).timestamp() if expiry is not None else None


def _ask_token_server(*arguments: Any, **named: Any) -> Any:
    from streamer.backends.gcs.token_requests import ask_token_server  # noqa: PLC0415  it imports requests, 0.1 s

    return ask_token_server(*arguments, **named)


def _cached_credentials(project: str, access: str) -> Any:
    """Return the credentials that gcsfs has cached after a login in a browser, for this access or full control."""
    if "gcsfs" not in sys.modules and not os.path.exists(os.path.expanduser("~/.gcs_tokens")):
        return None
    from gcsfs.credentials import GoogleCredentials  # noqa: PLC0415  it takes 0.4 s

    tokens = GoogleCredentials.tokens
    return tokens.get((project, access)) or tokens.get((project, "full_control"))


class Logins:
    """Keeps logins by their options; any thread may call it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: OrderedDict[Hashable, GoogleLogin] = OrderedDict()

    def of(self, options: Mapping[str, Any]) -> GoogleLogin:
        """Return the login that arguments of gcsfs name; with ``skip_instance_cache`` it is a new one."""
        own = {name: options[name] for name in OPTIONS if options.get(name) is not None}
        if options.get("skip_instance_cache"):
            return GoogleLogin(**own)
        key = _Key(key_of(own), login_state())
        with self._guard:
            kept = self._kept.get(key)
        login = kept or GoogleLogin(**own)
        with self._guard:
            login = self._kept.setdefault(key, login)  # another thread may have been faster
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return login

    def forget(self, login: GoogleLogin) -> None:
        """Let the next load with the same options look for credentials again."""
        with self._guard:
            for key in [key for key, each in self._kept.items() if each is login]:
                del self._kept[key]

    def clear(self) -> None:
        """Forget all logins."""
        self.__init__()  # type: ignore[misc]


@dataclass(frozen=True)
class _Key:
    """Equal for equal options and credentials; its `repr` shows neither."""

    options: Hashable = field(repr=False)
    state: Hashable = field(repr=False)


LOGINS = Logins()
os.register_at_fork(after_in_child=LOGINS.clear)  # another thread may hold the guard
