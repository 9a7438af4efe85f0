"""The control plane of Google Cloud Storage: its JSON API, asked through the session of one gcsfs instance.

Guarantees: options of the user (arguments, fsspec configuration, environment) are never overridden, changed in place or
written back; a request ends within three attempts and the time of `answer_times`; a refused token is renewed once.
gcsfs's own requests are not used: they answer from a listing cache, lose the status and Google's reason, retry six
times over a minute, and renew tokens on the event loop that all file systems share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from fsspec.asyn import sync
from gcsfs.core import GCSFileSystem
from yarl import URL

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.answer_values import parse_document, parse_word
from streamer.backends.client.bounded_answers import BoundedResponse, allowing, body_of
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.option_types import TEXT, Kind, Kinds, check_types, timeout_of
from streamer.backends.client.proxy import environment_proxy, named_proxy
from streamer.backends.client.retry import Attempts, is_transient
from streamer.backends.fsspec.instances import shared, stop_sharing
from streamer.backends.fsspec.options import configured_options, names_of_arguments
from streamer.backends.gcs.credentials import EMULATOR, Bearer, GcsFileSystem, bearer_of
from streamer.backends.gcs.errors import Answer, Caller
from streamer.backends.option_names import check_option_names
from streamer.backends.private_names.aiohttp import verifies_tls
from streamer.backends.private_names.gcsfs import open_session, shows_certificate
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES
from streamer.core.secrets.environment import blank_variables, set_variables
from streamer.core.secrets.options import SecretOptions
from streamer.core.secrets.texts import note_credential
from streamer.core.secrets.urls import hidden_uri
from streamer.core.store.trust import trust_in

__all__ = ["GcsClient", "filled_options"]

DEFAULT_LIMITS = Limits()

_KINDS: Kinds = {
    **dict.fromkeys(("access", "endpoint_url", "key_file", "project"), TEXT),
    "requester_pays": Kind("True, or the name of a project", (bool, str)),
    "session_kwargs": {"proxy": Kind("a URL", (str, URL))},
}


# The last one is taken from ``**kwargs`` by the class for buckets with folders.
_NAMES = names_of_arguments(GCSFileSystem, GcsFileSystem) | {"memmove_max_workers"}


class GcsClient:
    """Sends requests about objects, and gives the URLs and credentials that read them.

    Args:
        storage_options: Arguments of `gcsfs.GCSFileSystem`.
        limits: Bounds of Google's answers.

    Attributes:
        caller: The sender of the requests, for errors.

    Raises:
        OptionError: an option that is refused.
        Exception: what gcsfs and google-auth raise, for `raise_storage_error`.
    """

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        options = filled_options(storage_options, set_variables())
        options["session_kwargs"] = {"response_class": BoundedResponse, **(options.get("session_kwargs") or {})}
        self._fs: GcsFileSystem = shared(self, GcsFileSystem, options, _close)
        self.endpoint = self._location = self._fs.base.removesuffix("/storage/v1/").rstrip("/")
        _check_endpoint(hidden_uri(self._location))
        self._session_options: Mapping[str, Any] = self._fs.session_kwargs
        self._trust = self._environment_trust()
        timeout = timeout_of(self._fs.requests_timeout, "requests_timeout")
        self._times = answer_times(limits, timeout.total if timeout else None)
        self._timeout = timeout or aiohttp.ClientTimeout(connect=self._times.connect_s, sock_read=self._times.silence_s)
        self.caller = Caller(self._fs.why_anonymous, _user_project(self._fs))

    def get(self, bucket: str, key: str | None = None, **parameters: str | None) -> Answer:
        """Request the metadata of an object, or without `key` a page of the bucket's listing.

        Exceptions of aiohttp and google-auth pass through; an answer of any status is returned.
        """
        url = self._url("storage/v1", bucket, key, parameters)
        bearer = self.bearer()
        answer = self._answer_to(url, bearer)
        if answer.status == 401 and bearer.token is not None:
            other = self._renewed(bearer)
            if other.token != bearer.token:
                answer = self._answer_to(url, other)
        return answer

    def put(self, bucket: str, key: str, data: bytes) -> Answer:
        """Upload one small object in one request; exceptions and answers as those of `get`."""
        url = self._url("upload/storage/v1", bucket, None, {"uploadType": "media", "name": key})
        return self._answer_to(url, self.bearer(), data)

    def media_url(self, bucket: str, key: str, **parameters: str | None) -> str:
        """Return the URL of the bytes of an object."""
        return self._url("download/storage/v1", bucket, key, {"alt": "media", **parameters})

    def bearer(self, refused: str | None = None) -> Bearer:
        """Return the credentials of this moment; see `bearer_of`."""
        bearer = bearer_of(self._fs, refused)
        note_credential(bearer.token)
        return bearer

    def proxy(self) -> str | None:
        """Return the proxy that ``session_kwargs`` names, with its password."""
        return named_proxy(self._session_options)

    def forget_absent_credentials(self) -> None:
        """Let the next client look for credentials again, where this one found none."""
        if self.caller.why_anonymous == "none found":
            stop_sharing(self._fs)

    def _url(self, service: str, bucket: str, key: str | None, parameters: Mapping[str, str | None]) -> str:
        path = f"b/{quote(bucket, safe='')}/o" + (f"/{quote(key, safe='')}" if key is not None else "")
        named = {**parameters, "userProject": self.caller.user_project}
        query = urlencode({name: value for name, value in named.items() if value is not None}, quote_via=quote)
        return f"{self._location}/{service}/{path}" + (f"?{query}" if query else "")

    def _renewed(self, bearer: Bearer) -> Bearer:
        try:
            return self.bearer(refused=bearer.token)
        except Exception:  # the answer to the old token is the better error
            return bearer

    def _answer_to(self, url: str, bearer: Bearer, data: bytes | None = None) -> Answer:
        answer: Answer = sync(self._fs.loop, self._bounded_request, url, bearer, data)
        return answer

    async def _bounded_request(self, url: str, bearer: Bearer, data: bytes | None) -> Answer:
        with allowing(self._limits.answer_bytes, self._times):
            return await asyncio.wait_for(self._retried(url, bearer, data), self._times.request_s)

    async def _retried(self, url: str, bearer: Bearer, data: bytes | None) -> Answer:
        attempts = Attempts(self._times)
        while True:
            try:
                answer = await self._send(url, bearer, data)
            except Exception as error:
                if attempts.are_over or not is_transient(error):
                    raise
                pause_s = 0.0
            else:
                pause_s = answer.retry_after_s
                if attempts.are_over or answer.status not in STATUSES or pause_s > LONGEST_PAUSE_S:
                    return replace(answer, attempts=attempts.number, elapsed_s=attempts.elapsed_s)
            await attempts.pause(pause_s)

    async def _send(self, url: str, bearer: Bearer, data: bytes | None) -> Answer:
        session = await open_session(self._fs)
        async with session.request(
            "GET" if data is None else "POST",
            URL(url, encoded=True),
            data=data,
            headers=bearer.headers,
            timeout=self._timeout,
            allow_redirects=False,
            **self._trust,
            **self._environment_proxy(),
        ) as response:
            document = _document(await body_of(response, self._limits.answer_bytes))
            request_id = parse_word(response.headers.get("X-GUploader-UploadID"))
            pause_s = demanded_pause_s(response.status, response.headers)
            return Answer(response.status, document, request_id, retry_after_s=pause_s)

    def _environment_trust(self) -> dict[str, Any]:
        """Obey ``SSL_CERT_FILE`` as the engine does; aiohttp reads it only when it is imported."""
        has_own = "connector" in self._session_options or shows_certificate(self._fs)
        return {} if has_own or not self._location.startswith("https://") else {"ssl": trust_in()}

    def _environment_proxy(self) -> dict[str, Any]:
        """Obey ``HTTPS_PROXY``, where the user's session names no proxy itself."""
        if self._session_options.keys() & {"proxy", "trust_env"}:
            return {}
        proxy = environment_proxy(self._location)
        return {"proxy": proxy} if proxy else {}


async def _close(fs: GcsFileSystem) -> None:
    session: aiohttp.ClientSession | None = fs.session
    if session is None:
        return
    if "connector" in fs.session_kwargs:
        session.detach()  # the user owns the connector
    else:
        await session.close()


def filled_options(storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> SecretOptions:
    """Complete the arguments of `GCSFileSystem` from fsspec's configuration and the environment.

    Variables of the environment become arguments, as fsspec would otherwise return the instance of an environment that
    has changed since. For an emulator no credentials are looked for, as in Google's own library.

    Raises:
        OptionError: an unknown option, a value of the wrong type, an ``asynchronous`` instance, a key file that does
            not exist, or TLS that is not verified.
    """
    check_option_names("gs://", storage_options, _NAMES)
    options = configured_options(GcsFileSystem, storage_options)
    check_types(options, _KINDS)
    if options.get("project", "") is None:
        del options["project"]  # gcsfs would warn
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if not options.get("endpoint_url") and emulator not in ("", "default"):
        options["endpoint_url"] = emulator if "://" in emulator else f"http://{emulator}"
        options["token"] = EMULATOR if options.get("token") is None else options["token"]
    if not options.get("endpoint_url") and blank_variables(["GOOGLE_CLOUD_UNIVERSE_DOMAIN"]):
        options["endpoint_url"] = "https://storage.googleapis.com"  # gcsfs takes a blank one at its word
    if options.get("token") is None and environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        options["key_file"] = environment["GOOGLE_APPLICATION_CREDENTIALS"]
    if _looks_like_a_path(options.get("token")):
        try:
            open(options["token"], "rb").close()
        except OSError as error:
            raise OptionError(f"The option token names a file that cannot be read ({type(error).__name__})") from None
    session = options.get("session_kwargs") or {}
    if not verifies_tls(session.get("connector")):
        raise OptionError("A connector with ssl=False is refused: TLS certificates are always verified")
    return options


def _looks_like_a_path(token: Any) -> bool:
    """Say whether a token names a file: a mistyped name would be sent to the server as a token."""
    return isinstance(token, str) and (token.endswith(".json") or token.startswith(("/", "./", "../", "~")))


def _check_endpoint(location: str) -> None:
    if not location.startswith(("http://", "https://")):
        raise OptionError("endpoint_url must begin with http:// or https://")
    if "@" in location or "?" in location:
        raise OptionError("endpoint_url cannot hold a user, a password or a query: they would be shown in messages")


def _user_project(fs: GcsFileSystem) -> str | None:
    if not fs.requester_pays:
        return None
    if isinstance(fs.requester_pays, str):
        return fs.requester_pays
    quota_project = getattr(fs.credentials.credentials, "quota_project_id", None)
    if not (fs.project or quota_project):
        raise OptionError(
            "requester_pays=True needs a project to be billed, and none is named",
            hint="Name it: requester_pays='my-project'",
        )
    return fs.project or quota_project


def _document(body: bytes) -> Mapping[str, Any] | None:
    document = parse_document(body)
    return document if isinstance(document, dict) else None
