"""Sends the requests of a botocore client over the engine's connections, in place of botocore's HTTP library.

botocore still makes, signs and parses the requests: a handler of its public event ``before-send`` may answer a request.
https://docs.aws.amazon.com/boto3/latest/guide/events.html

Guarantees: a request uses the same certificates, proxy and ``User-Agent`` as reads, and is retried by the rule of all
lookups (`Sender`). A redirect is an answer and is not followed, so that no session token reaches another host. Failures
are the engine's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from botocore.awsrequest import AWSResponse

from streamer.backends.client.exchange import Response
from streamer.backends.s3.answers import refuse_foreign_listing
from streamer.backends.s3.sender import Sender
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource

__all__ = ["Call", "calling", "send_natively"]

_NOT_SENT = frozenset({"content-length", "expect", "user-agent"})  # libcurl writes them itself
_SECRET = {"X-Amz-Security-Token", "x-amz-server-side-encryption-customer-key"}
_LISTING = "before-send.s3.ListObjectsV2"
_OBJECT = "before-send.s3.GetObject"


class Unsent(NamedTuple):
    """Stands for the answer to a request that was only signed."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""


@dataclass
class Signing:
    """One signature, in headers or in a URL, of a request that botocore makes and does not send.

    Attributes:
        url: URL of the request.
        headers: Its headers; for a signature in the URL, those that the URL's receiver has to send, too.
    """

    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def send(self, request: Any) -> Unsent:
        """Keep the request in place of sending it."""
        self.url, self.headers = request.url, _headers_of(request)
        return Unsent()

    def note_unsigned(self, request: Any) -> None:
        """Keep the headers that the URL's signature will cover; the options of the user may name some."""
        named = request.headers.items()
        self.headers = {name.lower(): _text(value) for name, value in named if name.lower().startswith("x-amz-")}


@dataclass
class Call:
    """One call of a method of botocore's client, which may send several requests.

    Many loads share a client, but each load has its own bounds, so the call holds the bounds.

    Attributes:
        source_for: Returns the source of a URL, with certificates, proxy and headers as for reads.
        sender: Bounds and retries its requests.
        has_answer: A request was answered, so a later failure is about the answer's content.
        attempts: Number of attempts of the last request.
        began_s: Begin of the first request, by `time.monotonic`.
    """

    source_for: Callable[[str], HttpSource]
    sender: Sender
    has_answer: bool = False
    attempts: int = 1
    began_s: float = field(default_factory=monotonic)

    def send(self, request: Any, *, is_document: bool = False) -> Response:
        """Send a request of botocore until it is answered, by a whole document if it is to be one."""
        headers = _headers_of(request)
        source = self.source_for(request.url)
        source = replace(source, headers={**headers, **source.headers})
        response, attempts = self.sender.answer(
            source, request.method, _body_of(request), began_s=self.began_s, is_document=is_document
        )
        self.has_answer, self.attempts = True, attempts.number
        return response


Kind = TypeVar("Kind", Call, Signing)
_call: ContextVar[Call | Signing | None] = ContextVar("call", default=None)


@contextmanager
def calling(call: Kind) -> Iterator[Kind]:
    """Make the requests of this thread part of a call, or keep the request that is signed."""
    token = _call.set(call)
    try:
        yield call
    finally:
        _call.reset(token)


def send_natively(client: Any) -> None:
    """Make a client of botocore send its requests over the engine's connections."""
    client.meta.events.register_last("before-send.s3", _send, unique_id="streamer-send")
    client.meta.events.register_first("before-sign.s3", _note_unsigned, unique_id="streamer-note")


def _note_unsigned(request: Any, **_: Any) -> None:
    signing = _call.get()
    if isinstance(signing, Signing):
        signing.note_unsigned(request)


def _send(request: Any, event_name: str = "", **_: Any) -> AWSResponse | None:
    call = _call.get()
    if call is None:  # the request belongs to a signature, not to a call
        return None
    if isinstance(call, Signing):
        unsent = call.send(request)
        return AWSResponse(request.url, unsent.status, unsent.headers, _Raw(unsent.body))
    response = call.send(request, is_document=request.method == "GET" and event_name != _OBJECT)
    if event_name == _LISTING and response.status == 200:
        refuse_foreign_listing(request.url, response)
    return AWSResponse(request.url, response.status, response.headers, _Raw(response.body))


def _headers_of(request: Any) -> dict[str, str]:
    headers = {name: _text(value) for name, value in request.headers.items() if name.lower() not in _NOT_SENT}
    for name in _SECRET & headers.keys():  # a server may repeat what is sent as it is
        note_credential(headers[name])
    return headers


def _body_of(request: Any) -> bytes:
    body = request.body
    body = body.read() if hasattr(body, "read") else body  # a file, or a framed body
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    """A complete body, with the methods that botocore calls on a body of its HTTP library."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body

    def read(self, _: int | None = None) -> bytes:
        return self._body

    def close(self) -> None:
        pass
