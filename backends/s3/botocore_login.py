"""The login of requests to S3 as botocore finds it: keys, and the places of buckets under any of its settings.

botocore's session and client are made as s3fs would make them from its arguments; the client sends nothing, and signs
nothing. Guarantees: loads with the same profile share one session, so that temporary credentials are fetched once, as
long as the environment and the user's files do not change. If the user passes a session of aiobotocore (the option
``session`` of s3fs), it is not changed; its configuration and its credentials are used.

Loads with equal options share one login, as long as the environment and the user's files do not change. The last
`KEPT` logins stay for later loads.

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
from botocore.exceptions import NoCredentialsError
from botocore.handlers import validate_bucket_name
from botocore.session import Session

from streamer.backends.aws_sessions import EnvironmentSession
from streamer.backends.client.answer_times import ATTEMPTS
from streamer.backends.login_state import key_of, login_state
from streamer.backends.s3.errors import LoginError
from streamer.backends.s3.login import Login
from streamer.backends.s3.options import OF_AIOBOTOCORE, OF_SESSION, texts_of_settings, user_agent_of
from streamer.backends.s3.signing import EXPRESS, BucketEndpoint, Keys
from streamer.core.collector import collector_paused
from streamer.core.errors import UsageError
from streamer.core.store.certificates import trust_in

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_GLOBAL = {"aws-global": "us-east-1"}  # a name of the global endpoint, and the region that its signatures name
_CHECK = "before-parameter-build.s3"

KEPT = 8  # a job reads with a few logins in turn

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ARGUMENTS = {**dict(zip(_KEYS, ("key", "secret", "token"), strict=True)), "endpoint_url": "endpoint_url"}
_ONE_ATTEMPT = {"mode": "standard", "total_max_attempts": 1}


def _validate_name_of_tenants_bucket(params: Mapping[str, Any], **_: Any) -> None:
    if "Bucket" in params and not params["Bucket"].startswith("arn:"):
        validate_bucket_name({"Bucket": params["Bucket"].rpartition(":")[2]})


def _is_amazon(client: Any) -> bool:
    host = (urlsplit(client.meta.endpoint_url).hostname or "").rstrip(".")
    return f".{host}".endswith(_AMAZON)


def keys_in(session: Session) -> Keys:
    """Return the keys of a session, which renews them before they expire."""
    frozen = _credentials_of(session)
    if frozen is None:
        raise NoCredentialsError
    return Keys(frozen[0], frozen[1], frozen[2] or None)


def _credentials_of(session: Session) -> Any:
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


class _MadeError(Exception):
    """Ends a call of botocore's client when it has made its request."""

    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request


def _stop(request: Any, **_: Any) -> None:
    raise _MadeError(request)


class BotocoreLogin:
    """Finds the login of one set of options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._is_shared = not self._options.pop("skip_instance_cache", False)
        self._lock = RLock()
        self._clients: dict[str | None, Any] = {}  # by the region that an answer named
        self._places: dict[tuple[str, str | None], BucketEndpoint] = {}

    @cached_property
    def session(self) -> Session:
        """The session; the exceptions of botocore pass through."""
        users_session = self._options.get("session")
        if users_session is not None:
            return UsersSession(users_session)
        of_session = {name: self._options[name] for name in OF_SESSION if name in self._options}
        is_shared = self._is_shared and of_session.keys() <= {"profile"}
        return shared_session(of_session.get("profile")) if is_shared else EnvironmentSession(of_session)

    def login(self) -> Login:
        """Return the login; the exceptions of botocore pass through."""
        with self._lock:
            client = self._client(None)
            config = client.meta.config  # its `user_agent` is botocore's combination of all three options
            default = getattr(self.session.get_default_client_config(), "user_agent", None)
            name = self._options["config_kwargs"].get("user_agent") or default
            name = user_agent_of(name, config.user_agent_appid, config.user_agent_extra)
            named = config.client_cert  # one file, or a pair: the certificate and its key
            payer = {"RequestPayer": "requester"} if self._options.get("requester_pays") else {}
            return Login(
                client.meta.partition if _is_amazon(client) else client.meta.endpoint_url.rstrip("/"),
                self._place_of,
                None if self._options.get("anon") else self._keys,
                self.ca_file(),
                self.attempts(),
                settings={**payer, **texts_of_settings(self._options.get("s3_additional_kwargs") or {})},
                headers={"User-Agent": name} if name else {},
                proxies=config.proxies or {},
                client_cert=(named, None) if named is None or isinstance(named, str) else tuple(named),
                # Old releases lack the first of these settings.
                has_checksums=getattr(config, "request_checksum_calculation", None) != "when_required",
                signs_payload=(config.s3 or {}).get("payload_signing_enabled"),
            )

    def _client(self, region: str | None) -> Any:
        if not self._options.get("anon") and self._options.get("key") is None:
            _credentials_of(self.session)  # otherwise botocore fetches them while it makes the client
        if region not in self._clients:
            with collector_paused():  # botocore makes thousands of objects from JSON files
                if ca_file := self.ca_file():
                    trust_in(ca_file)  # raises if the file cannot be used; botocore would fail to connect
                arguments = self._arguments() | ({} if region is None else {"region_name": region})
                client = self.session.create_client("s3", config=self._config(), **arguments)
            if not _is_amazon(client):  # only the part of a bucket's name after the tenant is checked
                client.meta.events.unregister(_CHECK, validate_bucket_name)
                client.meta.events.register(_CHECK, _validate_name_of_tenants_bucket, unique_id=__name__)
            client.meta.events.register_first("request-created.s3", _stop)
            self._clients[region] = client
        return self._clients[region]

    def _place_of(self, bucket: str, region: str | None) -> BucketEndpoint:
        """Let botocore make a request about an object of the bucket, and return where it would go."""
        with self._lock:
            if (bucket, region) not in self._places:
                self._places[bucket, region] = self._found_place(self._client(region), bucket)
            return self._places[bucket, region]

    def _found_place(self, client: Any, bucket: str) -> BucketEndpoint:
        if ":" in bucket and not bucket.startswith("arn:") and _is_amazon(client):
            raise UsageError(
                "Amazon S3 forbids a colon in the name of a bucket; tenant:bucket is a name of other servers",
                hint="Name that server: storage_options={'endpoint_url': 'https://…'}, or AWS_ENDPOINT_URL",
            )
        try:
            client.get_object(Bucket=bucket, Key="k")
        except _MadeError as made:
            request = made.request
        named = request.context.get("signing", {})
        kind = request.context.get("auth_type") or client.meta.config.signature_version
        if self._options["config_kwargs"].get("signature_version") == EXPRESS:
            kind, named = EXPRESS, {**named, "signing_name": "s3express"}
        elif kind == EXPRESS or ("cache_key" in named and _is_amazon(client)):
            hint = "Install a plug-in for directory buckets, or copy the objects to a bucket of another kind"
            raise UsageError("A directory bucket (S3 Express) needs the keys of a session", hint=hint)
        region = named.get("region") or client.meta.region_name or ""
        return BucketEndpoint(
            request.url.removesuffix("/k"),
            _GLOBAL.get(region, region),
            named.get("signing_name", "s3"),
            str(kind),
            (request.auth_path or "").removesuffix("/k"),
        )

    def _keys(self) -> Keys:
        """Return the keys of signatures."""
        key, secret, token = map(self._arguments().get, _KEYS)
        # Half a login does not get here: botocore refuses it when it makes the client.
        return Keys(key, secret or "", token or None) if key else keys_in(self.session)

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
        named = dict(self._options["config_kwargs"])
        named["retries"] = _ONE_ATTEMPT
        if named.get("signature_version") == EXPRESS:  # says that `session` has such keys; botocore would make others
            named["signature_version"] = "s3v4"
        if self._options.get("anon"):
            named["signature_version"] = UNSIGNED
        for name in OF_AIOBOTOCORE & named.keys():
            del named[name]
        return Config(**named)

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of botocore's `create_client`; an argument that is named twice is a `TypeError`."""
        arguments: dict[str, Any] = {"use_ssl": self._options.get("use_ssl", True)}
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

    options: Mapping[str, Any] = field(repr=False, compare=False)
    compared: Hashable = field(repr=False)
    login: Hashable = field(repr=False)


def shared_login(options: Mapping[str, Any]) -> BotocoreLogin:
    """Return the login of these options and the current environment."""
    own = dict(options)
    return BotocoreLogin(own) if own.get("skip_instance_cache") else _shared(_Key(own, key_of(own), login_state()))


def forget_logins() -> None:
    """Make later loads find their keys anew."""
    _session.cache_clear()
    _shared.cache_clear()


@lru_cache(maxsize=KEPT)
def _shared(key: _Key) -> BotocoreLogin:
    return BotocoreLogin(key.options)
