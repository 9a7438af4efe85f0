"""The session and the client of botocore for one login, as s3fs would make them from its arguments.

Guarantees: loads with equal options share one login and its credentials, as long as the environment and the user's
files do not change. The last `KEPT` logins stay for later loads. A client is made when it is first needed. It sends a
request once; `Sender` retries it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from threading import RLock
from typing import Any

from botocore import UNSIGNED
from botocore.config import Config
from botocore.session import Session

from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.client.answer_times import ATTEMPTS
from streamer.backends.login_state import key_of, login_state
from streamer.backends.s3.clock import sign_at_offset
from streamer.backends.s3.options import OF_AIOBOTOCORE, OF_SESSION
from streamer.backends.s3.presigning import hold_to_region
from streamer.backends.s3.sessions import KEPT, UsersSession, keys_in, shared_session
from streamer.backends.s3.tenants import allow_tenants
from streamer.backends.s3.transport import send_natively
from streamer.core.collector import collector_paused
from streamer.core.secrets.options import SecretOptions, plain
from streamer.core.store.trust import trust_in

__all__ = ["BotocoreLogin", "shared_login"]

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ARGUMENTS = {**dict(zip(_KEYS, ("key", "secret", "token"), strict=True)), "endpoint_url": "endpoint_url"}
_ONE_ATTEMPT = {"mode": "standard", "total_max_attempts": 1}


class BotocoreLogin:
    """The credentials and the endpoint of requests.

    Args:
        options: Arguments of `s3fs.S3FileSystem`, completed by `filled_options`. With ``skip_instance_cache`` nothing
            is shared.
    """

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
        """Return botocore's client; the exceptions of botocore pass through.

        Raises:
            LoginError: the keys could not be found or renewed.
        """
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
        """Return the arguments of botocore's `create_client`; one that is named twice is a `TypeError`."""
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
