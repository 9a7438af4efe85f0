"""The session and the client of botocore for one login, as s3fs would make them from its arguments.

Guarantees: loads with the same profile share one session, so that temporary credentials are fetched once, as long as
the environment and the user's files do not change. If the user passes a session of aiobotocore (the option ``session``
of s3fs), it is not changed; its configuration and its credentials are used.

Loads with equal options share one login and its credentials, as long as the environment and the user's
files do not change. The last `KEPT` logins stay for later loads. A client is made when it is first needed. It sends a
request once; `Sender` retries it.

Buckets of other tenants (``tenant:bucket``, as Ceph and OpenStack name them) are read if the server is not Amazon's;
for Amazon, an error says that Amazon has no such bucket. Amazon forbids a colon in the name of a bucket, and botocore
applies this rule to every server. Names with an ``@`` do not reach this module: the store refuses them, because they
hold credentials.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from threading import RLock
from typing import Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.handlers import validate_bucket_name
from botocore.session import Session

from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.client.answer_times import ATTEMPTS
from streamer.backends.login_state import key_of, login_state
from streamer.backends.s3.errors import LoginError
from streamer.backends.s3.options import OF_AIOBOTOCORE, OF_SESSION
from streamer.backends.s3.signing import hold_to_region, sign_at_offset
from streamer.backends.s3.transport import send_natively
from streamer.core.collector import collector_paused
from streamer.core.errors import UsageError
from streamer.core.secrets.hidden_arguments import SecretOptions, plain
from streamer.core.store.certificates import trust_in

__all__ = [
    "KEPT",
    "BotocoreLogin",
    "UsersSession",
    "allow_tenants",
    "check_tenant",
    "is_amazon",
    "keys_in",
    "shared_login",
    "shared_session",
]

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_CHECK = "before-parameter-build.s3"

KEPT = 8  # a job reads with a few logins in turn

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ARGUMENTS = {**dict(zip(_KEYS, ("key", "secret", "token"), strict=True)), "endpoint_url": "endpoint_url"}
_ONE_ATTEMPT = {"mode": "standard", "total_max_attempts": 1}


def allow_tenants(client: Any) -> None:
    """Make the client of another server than Amazon's check only the part of a bucket's name after the tenant."""
    if not is_amazon(client):
        client.meta.events.unregister(_CHECK, validate_bucket_name)
        client.meta.events.register(_CHECK, _validate_name_of_tenants_bucket, unique_id=__name__)


def check_tenant(client: Any, bucket: str) -> None:
    """Refuse the bucket of a tenant at Amazon, before botocore refuses it with a message that repeats the name."""
    if ":" in bucket and not bucket.startswith("arn:") and is_amazon(client):
        raise UsageError(
            "Amazon S3 forbids a colon in the name of a bucket; tenant:bucket is a name of other servers",
            hint="Name that server: storage_options={'endpoint_url': 'https://…'}, or AWS_ENDPOINT_URL",
        )


def _validate_name_of_tenants_bucket(params: Mapping[str, Any], **_: Any) -> None:
    if "Bucket" in params and not params["Bucket"].startswith("arn:"):
        validate_bucket_name({"Bucket": params["Bucket"].rpartition(":")[2]})


def is_amazon(client: Any) -> bool:
    """Say whether the requests of botocore's client go to Amazon."""
    host = (urlsplit(client.meta.endpoint_url).hostname or "").rstrip(".")
    return f".{host}".endswith(_AMAZON)


def keys_in(session: Session) -> Any:
    """Return the frozen credentials of a session, which renews them before they expire; None if it has none."""
    try:
        credentials = session.get_credentials()
        return None if credentials is None else credentials.get_frozen_credentials()
    except Exception as error:
        raise LoginError from error


def shared_session(profile: str | None) -> EnvironmentSession:
    """Return the session of a profile and the current environment; None is the environment's or the default profile."""
    return _session(profile, login_state())


@lru_cache(maxsize=KEPT)
def _session(profile: str | None, login: Hashable) -> EnvironmentSession:
    del login  # only a part of the cache's key
    return EnvironmentSession({} if profile is None else {"profile": profile})


class UsersSession(Session):  # type: ignore[misc]  # botocore has no types
    """A session of botocore with the configuration and credentials of the user's session."""

    def __init__(self, session: Any) -> None:
        super().__init__(profile=session.profile)
        self._users_session = session
        self.register_component("config_store", session.get_component("config_store"))

    def get_credentials(self) -> Credentials | None:
        """Return the user's credentials, which may be renewed before each signature; None if there are none."""
        credentials = _result(self._users_session.get_credentials)
        return None if credentials is None else _UsersCredentials(credentials)


class _UsersCredentials(Credentials):  # type: ignore[misc]  # as above
    def __init__(self, credentials: Any) -> None:
        super().__init__("", "")
        self._users_credentials = credentials

    def get_frozen_credentials(self) -> Any:
        return _result(self._users_credentials.get_frozen_credentials)


def _result(function: Callable[[], Any]) -> Any:
    """Call a method that may be a coroutine, on fsspec's event loop, as s3fs does."""
    from fsspec.asyn import get_loop, sync  # noqa: PLC0415 (only users' sessions need it)

    async def call() -> Any:
        result = function()
        return await result if inspect.isawaitable(result) else result

    return sync(get_loop(), call)


class BotocoreLogin:
    """The credentials and the endpoint of requests."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = SecretOptions(options)
        self._is_shared = not self._options.pop("skip_instance_cache", False)
        self._lock = RLock()

    @property
    def session(self) -> Session:
        """The session; the exceptions of botocore pass through."""
        with self._lock:
            return self._session

    @cached_property
    def _session(self) -> Session:
        users_session = self._options.get("session")
        if users_session is not None:
            return UsersSession(users_session)
        of_session = SecretOptions({name: self._options[name] for name in OF_SESSION if name in self._options})
        is_shared = self._is_shared and of_session.keys() <= {"profile"}
        return shared_session(of_session.get("profile")) if is_shared else EnvironmentSession(of_session)

    def client(self) -> Any:
        """Return botocore's client; the exceptions of botocore pass through."""
        with self._lock:
            if not self._options.get("anon") and self._options.get("key") is None:
                keys_in(self.session)
            return self._client

    @cached_property
    def _client(self) -> Any:
        with collector_paused():  # botocore makes thousands of objects from JSON files
            if ca_file := self.ca_file():
                trust_in(ca_file)  # raises if the file cannot be used; botocore would fail to connect, even by http://
            client = self.session.create_client("s3", config=self._config(), **plain(self._arguments()))
        send_natively(client)
        allow_tenants(client)
        hold_to_region(client)
        sign_at_offset(client)
        return client

    def keys(self) -> tuple[str | None, str | None] | None:
        """Return the access key and the token of signatures; None for anonymous requests. Raises as `client`."""
        if self._options.get("anon"):
            return None
        named = self._arguments()
        if named.get(_KEYS[0]):
            return named[_KEYS[0]], named.get(_KEYS[2])
        found = keys_in(self.session)
        return None if found is None else (found.access_key, found.token)

    def ca_file(self) -> str | None:
        """Return the file of certificates to trust, or None for the system's certificates."""
        named = self._options["client_kwargs"].get("verify") or self.session.get_config_variable("ca_bundle")
        return os.fspath(named) if isinstance(named, (str, os.PathLike)) else None

    def attempts(self) -> int:
        """Return the highest number of attempts: the number that the user configured for botocore, or our own."""
        named = self._options["config_kwargs"].get("retries") or {}
        if "total_max_attempts" in named:
            return int(named["total_max_attempts"])
        if "max_attempts" in named:  # attempts after the first
            return int(named["max_attempts"]) + 1
        return int(self.session.get_config_variable("max_attempts") or ATTEMPTS)

    def _config(self) -> Config:
        named = SecretOptions(self._options["config_kwargs"])
        named["retries"] = _ONE_ATTEMPT
        if self._options.get("anon"):
            named["signature_version"] = UNSIGNED
        for name in OF_AIOBOTOCORE & named.keys():
            del named[name]
        return Config(**plain(named))

    def _arguments(self) -> SecretOptions:
        """Return the arguments of botocore's `create_client`; an argument that is named twice is a `TypeError`."""
        arguments = SecretOptions({"use_ssl": self._options.get("use_ssl", True)})
        arguments.update(self._options["client_kwargs"])
        for name, option in _ARGUMENTS.items():
            if self._options.get(option) is None:
                continue
            if arguments.get(name) not in (None, self._options[option]):
                raise TypeError(f"{option} and client_kwargs[{name!r}] differ")
            arguments[name] = self._options[option]
        for name in _KEYS if self._options.get("anon") else ():
            arguments.pop(name, None)
        return arguments


@dataclass(frozen=True)
class _Key:
    """Equal for equal options and credentials."""

    options: SecretOptions = field(repr=False, compare=False)
    compared: Hashable = field(repr=False)
    login: Hashable = field(repr=False)


def shared_login(options: Mapping[str, Any]) -> BotocoreLogin:
    """Return the login of these options and the current environment."""
    own = SecretOptions(options)
    return BotocoreLogin(own) if own.get("skip_instance_cache") else _shared(_Key(own, key_of(own), login_state()))


@lru_cache(maxsize=KEPT)
def _shared(key: _Key) -> BotocoreLogin:
    return BotocoreLogin(key.options)
