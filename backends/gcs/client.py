"""The control plane of Google Cloud Storage: its JSON API, asked through the session of one gcsfs instance.

Guarantees: options of the user (arguments, fsspec configuration, environment) are never overridden, changed in place or
written back; a request ends within three attempts and the time of `answer_times`; a refused token is renewed once.
gcsfs's own requests are not used: they answer from a listing cache, lose the status and Google's reason, retry six
times over a minute, and renew tokens on the event loop that all file systems share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from fsspec.asyn import sync
from yarl import URL

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.answer_values import parse_document, parse_word
from streamer.backends.client.bounded_answers import BoundedResponse, allowing, body_of, is_transient
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.option_types import timeout_of
from streamer.backends.client.own_headers import own_headers
from streamer.backends.client.proxy import environment_proxy, named_proxy
from streamer.backends.client.retry import Attempts
from streamer.backends.fsspec.instances import shared, stop_sharing
from streamer.backends.gcs.credentials import Bearer, GcsFileSystem, bearer_of
from streamer.backends.gcs.errors import Answer, Caller
from streamer.backends.gcs.options import filled_options
from streamer.backends.gcs.python_reads import check_range
from streamer.backends.gcs.session_options import only_of_aiohttp
from streamer.backends.private_names.gcsfs import open_session, shows_certificate
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.texts import note_credential
from streamer.core.secrets.urls import hidden_uri
from streamer.core.store.trust import trust_in

__all__ = ["GcsClient"]

DEFAULT_LIMITS = Limits()


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
        return self._authorized(lambda bearer: self._answer_to(url, bearer))

    def put(self, bucket: str, key: str, data: bytes) -> Answer:
        """Upload one small object in one request; exceptions and answers as those of `get`."""
        url = self._url("upload/storage/v1", bucket, None, {"uploadType": "media", "name": key})
        return self._answer_to(url, self.bearer(), data)

    def read(self, url: str, begin: int, end: int) -> Answer:
        """Request a range of an object, in one attempt; exceptions and answers as those of `get`, or 206 with `data`.

        Raises:
            RangeResponseError: the answer holds another range.
        """
        return self._authorized(lambda bearer: sync(self._fs.loop, self._read, url, begin, end, bearer))

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

    def headers(self) -> dict[str, str]:
        """Return the headers that ``session_kwargs`` names, by names in lower case."""
        return own_headers(self._session_options)

    def only_python(self) -> str | None:
        """Name what the engine cannot take over from the session, so that Python reads; None if it can."""
        if (name := only_of_aiohttp(self._session_options)) is not None:
            return f"the option session_kwargs[{name!r}]"
        if shows_certificate(self._fs) and self._location.startswith("https://"):
            return "the client certificate of google-auth's configuration"
        return None

    def forget_absent_credentials(self) -> None:
        """Let the next client look for credentials again, where this one found none."""
        if self.caller.why_anonymous == "none found":
            stop_sharing(self._fs)

    def _url(self, service: str, bucket: str, key: str | None, parameters: Mapping[str, str | None]) -> str:
        path = f"b/{quote(bucket, safe='')}/o" + (f"/{quote(key, safe='')}" if key is not None else "")
        named = {**parameters, "userProject": self.caller.user_project}
        query = urlencode({name: value for name, value in named.items() if value is not None}, quote_via=quote)
        return f"{self._location}/{service}/{path}" + (f"?{query}" if query else "")

    def _authorized(self, send: Callable[[Bearer], Answer]) -> Answer:
        bearer = self.bearer()
        answer = send(bearer)
        if answer.status == 401 and bearer.token is not None:
            other = self._renewed(bearer)
            if other.token != bearer.token:
                answer = send(other)
        return answer

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
        async with await self._request(url, bearer.headers, data) as response:
            return await self._answer_in(response)

    async def _read(self, url: str, begin: int, end: int, bearer: Bearer) -> Answer:
        headers = {**bearer.headers, "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        with allowing(self._limits.answer_bytes, self._times):
            async with await self._request(url, headers) as response:
                if response.status != 206:
                    return await self._answer_in(response)
                check_range(response.headers, begin, end)
                data = await response.content.readexactly(end - begin)
                return Answer(206, data=data, generation=parse_word(response.headers.get("x-goog-generation")))

    async def _request(self, url: str, headers: Mapping[str, str], data: bytes | None = None) -> Any:
        session = await open_session(self._fs)
        return session.request(
            "GET" if data is None else "POST",
            URL(url, encoded=True),
            data=data,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
            **self._trust,
            **self._environment_proxy(),
        )

    async def _answer_in(self, response: aiohttp.ClientResponse) -> Answer:
        document = _document(await body_of(response, self._limits.answer_bytes))
        request_id = parse_word(response.headers.get("X-GUploader-UploadID"))
        return Answer(
            response.status, document, request_id, retry_after_s=demanded_pause_s(response.status, response.headers)
        )

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
