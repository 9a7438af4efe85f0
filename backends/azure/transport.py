"""The azure-core transport that sends signed requests of Azure's service client over the engine's connections.

Guarantees: a request ends within the attempts and the times that are set; no redirect is followed, and nothing is
decompressed. All requests use the same certificates and the same proxy as reads of data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure.core.pipeline.transport import HttpRequest, HttpResponse, HttpTransport
from azure.core.utils import CaseInsensitiveDict

from streamer.backends.client.answer_times import AnswerTimes
from streamer.backends.client.answer_values import described, refuse_cut
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.retry import Attempts, answered
from streamer.core.errors import TruncatedError
from streamer.core.store.sources import HttpSource

_CA_OPTION = "storage_options={'connection_verify': '/path/ca.pem'}"
_ENGINE_HEADERS = {"accept", "user-agent"}  # the engine sets these, so that lookups and reads send the same values


@dataclass
class Call:
    """One call of the service client: the caller's values, and the attempts that the transport reports."""

    uri: str  # the URL for messages, without secrets
    headers: Mapping[str, str] = field(repr=False)  # the headers of a login with a token
    attempts: Attempts | None = None  # the attempts until the answer; None as long as there is no answer
    answer: str = ""  # the answer, as `described`


@dataclass(frozen=True)
class EngineTransport(HttpTransport[HttpRequest, HttpResponse]):
    """Sends requests, and retries a request whose failure may be transient."""

    times: AnswerTimes
    most_attempts: int
    most_bytes: int
    ca_file: str | None
    proxies: Mapping[str, str] = field(repr=False)

    def send(self, request: HttpRequest, **options: Any) -> HttpResponse:
        """Send a request and read the whole answer, of any status; the option ``call`` is the `Call`."""
        call: Call = options["call"]
        request.headers.update(call.headers)
        answer = _Answer(request)
        times = self.times.with_upload(len(request.data or b""))
        del request  # its `repr` shows a SAS
        response, call.attempts = answered(
            lambda attempts: self._exchange(answer, attempts), times, call.uri, self.most_attempts
        )
        call.answer = f"HTTP {response.status}, {described(response.headers)}"
        answer.take(response)
        return answer

    def proxy(self, url: str) -> str | None:
        """Return the proxy that the options name for this URL; the longest prefix wins."""
        return next((self.proxies[key] for key in sorted(self.proxies, reverse=True) if url.startswith(key)), None)

    def open(self) -> None:
        """Do nothing: the engine owns the connections."""

    def close(self) -> None:
        """Do nothing: the engine owns the connections."""

    def __exit__(self, *_: object) -> None:
        """Do nothing: the engine owns the connections."""

    def _exchange(self, answer: _Answer, attempts: Attempts) -> Response:
        method = answer.request.method
        response = send(
            self._source(answer),
            self.times,
            method=method,
            body=answer.request.data or b"",  # type: ignore[arg-type]  # one small blob is bytes
            head_timeout_s=attempts.head_timeout_s,
            is_repeated=attempts.is_repeated,
            ca_option=_CA_OPTION,
        )
        if method != "HEAD":
            response.read(self.most_bytes)
        if method == "GET" and response.status == 200:
            _refuse_cut(answer.request.url, response.body)
        return response

    def _source(self, answer: _Answer) -> HttpSource:
        headers = answer.request.headers
        return HttpSource(
            answer.request.url,
            {name: headers[name] for name in headers if name.lower() not in _ENGINE_HEADERS},
            ca_file=self.ca_file,
            proxy=self.proxy(answer.request.url),
        )


def _refuse_cut(url: str, body: bytes) -> None:
    """Refuse a document without its end; a page of a listing always names the next page, or none (``NextMarker``)."""
    query = parse_qs(urlsplit(url).query)
    if "comp" not in query:  # the answer is a blob
        return
    refuse_cut(body)
    if query["comp"] == ["list"] and b"</EnumerationResults>" in body and b"<NextMarker" not in body:
        hint = "Load again; if that fails, check account_host and the proxy on the way to it"
        raise TruncatedError("Azure's listing does not say whether more follows (NextMarker)", hint=hint)


class _Answer(HttpResponse):
    """An answer in azure-core's form; its `repr` has no URL."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request, None)
        # If a refusal has no body, azure-storage parses the reason instead, and warns on stderr if the reason is text.
        self.reason = {}  # type: ignore[assignment]

    def take(self, response: Response) -> None:
        self._body = response.body
        self.status_code = response.status
        self.headers = CaseInsensitiveDict(response.headers)
        self.content_type = response.headers.get("content-type")

    def body(self) -> bytes:
        return self._body
