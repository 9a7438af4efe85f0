"""The control plane of Google Cloud Storage: its JSON API, with the options and the credentials of gcsfs.

Guarantees: each object has a name that can be requested and a size that a file can have; otherwise a `StorageError`.
Options of the user (arguments, fsspec configuration, environment) are never overridden, changed in place or written
back. A request ends within three attempts and the time of `answer_times`. A refused token is renewed once. The engine
sends the requests; if the engine cannot use the session's options, gcsfs's own session sends them. gcsfs's request
methods are not used: they answer from a listing cache, and lose the status and Google's reason. They also retry six
times over a minute, and renew tokens on the event loop that all file systems share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from streamer.backends.client.answer_times import named_times
from streamer.backends.client.answer_values import FOREIGN, parse_name, parse_size, parse_word
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.option_checks import timeout_of
from streamer.backends.client.proxy import named_proxy
from streamer.backends.client.request_headers import own_headers
from streamer.backends.client.retry import whole_answer
from streamer.backends.gcs.credentials import LOGINS, Bearer, GoogleLogin, bearer_of
from streamer.backends.gcs.errors import Answer, Caller
from streamer.backends.gcs.options import filled_options, only_of_aiohttp
from streamer.backends.login_state import login_identity
from streamer.core.errors import OptionError, StorageError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables, variable
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    from streamer.backends.gcs.session import GcsfsSession

DEFAULT_LIMITS = Limits()
_OF_PAGES = {"items", "kind", "nextPageToken", "prefixes"}  # an empty listing may have none of them
CERTIFICATE = "the client certificate of google-auth's configuration"

A = TypeVar("A", Answer, Response)


class DescribedObject(NamedTuple):
    """An object: its name, its size, and its generation if the answer has one."""

    name: str
    size_bytes: int
    generation: str | None


def page_in(document: Mapping[str, Any], uri: str) -> tuple[list[Any], str | None]:
    """Return the entries of a page, and the token of the next page."""
    if document and not document.keys() & _OF_PAGES:
        message = "The answer to a request for a listing is JSON that is no listing of Google Cloud Storage"
        raise StorageError(message, uri=uri, hint=f"{FOREIGN}: check endpoint_url")
    entries, token = document.get("items", []), document.get("nextPageToken")
    if not isinstance(entries, list) or not isinstance(document.get("prefixes", []), list):
        raise _malformed(uri)
    if not (token is None or isinstance(token, str)):
        raise _malformed(uri)
    if token and not token.isascii():  # lone surrogates, for example, cannot be sent back
        raise _malformed(uri)
    return entries, token or None


def names_in(document: Mapping[str, Any], folder: str) -> list[str]:
    """Return the names of a page's objects within the folder, and the names of sub-folders with a slash at the end."""
    names = [str(each.get("name")) for each in document.get("items", [])]
    return [name.removeprefix(folder) for name in (*map(str, document.get("prefixes", [])), *names) if name != folder]


def object_in(entry: object, uri: str) -> DescribedObject:
    """Parse the entry of one object."""
    if not isinstance(entry, dict) or "name" not in entry or "size" not in entry:
        raise _malformed(uri)
    generation = parse_word(str(entry.get("generation") or ""))
    return DescribedObject(parse_name(entry["name"], uri), parse_size(entry["size"], uri), generation)


def _malformed(uri: str) -> StorageError:
    message = "The answer describes no object of Google Cloud Storage"
    return StorageError(message, uri=uri, hint=f"{FOREIGN}: check endpoint_url")


if find_spec("gcsfs") is None:  # raise now, rather than when the first option needs gcsfs
    raise ModuleNotFoundError("No module named 'gcsfs'", name="gcsfs")


class GcsClient:
    """Sends requests about objects, and returns the URLs and credentials that read them.

    `only_python` is the session option that the engine cannot use, so that Python reads; None if the engine reads.
    """

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        options = filled_options(storage_options, set_variables())
        self._session_options: Mapping[str, Any] = options.get("session_kwargs") or {}
        self._headers, self._proxy = own_headers(self._session_options), named_proxy(self._session_options)
        self.endpoint = _endpoint(options)
        self._options = options
        self._login = LOGINS.of(options)
        self._times = named_times(limits, timeout_of(options.get("requests_timeout"), "requests_timeout"))
        self.caller = Caller(self._login.why_anonymous, _user_project(options.get("requester_pays"), self._login))
        self._session, self.only_python = self._session_for(options)

    def get(self, bucket: str, key: str | None = None, **parameters: str | None) -> Answer:
        """Request the metadata of an object; without `key`, request a page of the bucket's listing.

        Exceptions of google-auth pass through; an answer of any status is returned.
        """
        url = self._url("storage/v1", bucket, key, parameters)
        return self._authorized(lambda bearer: self._answer_to(self.target(url, bearer)))

    def change(
        self,
        method: str,
        service: str,
        bucket: str,
        key: str | None,
        parameters: Mapping[str, str],
        *,
        data: bytes | memoryview = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request that writes or removes; exceptions and answers are as for `get`."""
        url = self._url(service, bucket, key, parameters)
        return self._authorized(lambda bearer: self._answer_to(self.target(url, bearer, headers), method, data))

    def put(self, bucket: str, key: str, data: bytes) -> Answer:
        """Upload one small object in one request; exceptions and answers are as for `get`."""
        return self.change("POST", "upload/storage/v1", bucket, None, {"uploadType": "media", "name": key}, data=data)

    def read(self, url: str, begin: int, end: int) -> Response:
        """Request a range of an object in gcsfs's session, in one attempt; exceptions and answers are as for `get`."""
        span = {"range": f"bytes={begin}-{end - 1}", "accept-encoding": "identity"}
        most_bytes = max(end - begin, self._limits.answer_bytes)
        return self._authorized(lambda bearer: self._received(self.target(url, bearer, span), most_bytes))

    def media_url(self, bucket: str, key: str, **parameters: str | None) -> str:
        """Return the URL of the bytes of an object."""
        return self._url("download/storage/v1", bucket, key, {"alt": "media", **parameters})

    def bearer(self, refused: str | None = None) -> Bearer:
        """Return the current credentials; see `bearer_of`."""
        bearer = bearer_of(self._login, refused)
        note_credential(bearer.token)
        return bearer

    def target(self, url: str, bearer: Bearer, more: Mapping[str, str] | None = None, **facts: Any) -> HttpSource:
        """Return a source for a URL, with headers and proxy of ``session_kwargs``, `more` headers and credentials."""
        of_bearer = {name.lower() for name in bearer.headers}
        own = {**self._headers, **(more or {})}
        return HttpSource(
            url,
            {**{name: own[name] for name in own if name not in of_bearer}, **bearer.headers},
            proxy=self._proxy,
            **facts,
        )

    def login_identity(self) -> str:
        """Return what the login adds to the identity of an object; empty if another process cannot have the login."""
        host = urlsplit(self.endpoint).hostname or ""
        # Google has one owner for each name of a bucket, so every login that may read gets the same bytes.
        return "google" if host.endswith(".googleapis.com") else login_identity(self._options)

    def forget_absent_credentials(self) -> None:
        """If this client found no credentials, let the next client look for them again."""
        if self.caller.why_anonymous == "none found":
            LOGINS.forget(self._login)

    def _session_for(self, options: dict[str, Any]) -> tuple[GcsfsSession | None, str | None]:
        """Return gcsfs's session and the reason to use it; None for both if the engine can send the requests."""
        only = only_of_aiohttp(self._session_options, self.endpoint)
        if only is None and not (self.endpoint.startswith("https://") and _may_show_certificate()):
            return None, None
        from streamer.backends.gcs.session import GcsfsSession  # noqa: PLC0415  with gcsfs it takes 0.5 s

        own = {name: options[name] for name in options if name != "key_file"}
        own["token"] = self._login.credentials or "anon"
        session = GcsfsSession(own)
        if only is None and not session.shows_certificate:
            return None, None
        self.endpoint = session.endpoint
        return session, f"the option session_kwargs[{only!r}]" if only else CERTIFICATE

    def _url(self, service: str, bucket: str, key: str | None, parameters: Mapping[str, str | None]) -> str:
        path = f"b/{quote(bucket, safe='')}/o" + (f"/{quote(key, safe='')}" if key is not None else "")
        named = {**parameters, "userProject": self.caller.user_project}
        query = urlencode({name: value for name, value in named.items() if value is not None}, quote_via=quote)
        return f"{self.endpoint}/{service}/{path}" + (f"?{query}" if query else "")

    def _authorized(self, request: Callable[[Bearer], A]) -> A:
        bearer = self.bearer()
        answer = request(bearer)
        if answer.status == 401 and bearer.token is not None:
            other = self._renewed(bearer)
            if other.token != bearer.token:
                answer = request(other)
        return answer

    def _renewed(self, bearer: Bearer) -> Bearer:
        try:
            return self.bearer(refused=bearer.token)
        except Exception:  # the answer to the old token is the better error
            return bearer

    def _answer_to(self, source: HttpSource, method: str = "GET", data: bytes | memoryview = b"") -> Answer:
        most_bytes = self._limits.answer_bytes
        sender = self._sender(most_bytes)
        return Answer.of(*whole_answer(source, self._times, None, method, data, most_bytes=most_bytes, sender=sender))

    def _received(self, source: HttpSource, most_bytes: int) -> Response:
        """Send a request, once, and receive the whole answer."""
        response = self._sender(most_bytes)(source, self._times)
        response.read(most_bytes)
        return response

    def _sender(self, most_bytes: int) -> Callable[..., Response]:
        return partial(self._session.send, most_bytes=most_bytes) if self._session else send


def _endpoint(options: Mapping[str, Any]) -> str:
    default = f"https://storage.{variable('GOOGLE_CLOUD_UNIVERSE_DOMAIN') or 'googleapis.com'}"
    endpoint: str = (options.get("endpoint_url") or default).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise OptionError("endpoint_url must begin with http:// or https://")
    if "@" in endpoint or "?" in endpoint:
        raise OptionError("endpoint_url cannot hold a user, a password or a query: they would be shown in messages")
    return endpoint


def _may_show_certificate() -> bool:
    from google.auth.transport import mtls  # noqa: PLC0415  an emulator does not need it

    should: Callable[[], bool] = getattr(mtls, "should_use_client_cert", lambda: False)  # missing in old releases
    return should()


def _user_project(requester_pays: bool | str | None, login: GoogleLogin) -> str | None:
    if not requester_pays:
        return None
    if isinstance(requester_pays, str):
        return requester_pays
    quota_project: str | None = getattr(login.credentials, "quota_project_id", None)
    if not (login.project or quota_project):
        raise OptionError(
            "requester_pays=True needs a project to be billed, and none is named",
            hint="Name it: requester_pays='my-project'",
        )
    return login.project or quota_project
