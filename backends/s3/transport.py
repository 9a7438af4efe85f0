"""Sends the requests of a client of botocore over the engine's connections, in place of its own HTTP library.

botocore makes, signs and parses the requests as before: the handler of its public event ``before-send`` may answer one.
https://docs.aws.amazon.com/boto3/latest/guide/events.html

Guarantees: a request takes the way of the reads (certificates, proxy, ``User-Agent``), and is repeated by the rule of
all lookups (`Sender`); redirects are answers and not followed, so that no session token reaches another host. A failure
is the engine's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from botocore.awsrequest import AWSResponse

from streamer.backends.client.exchange import Response
from streamer.backends.s3.foreign_answers import refuse_foreign_listing
from streamer.backends.s3.sender import Sender
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource

__all__ = ["Call", "calling", "send_natively"]

_NOT_SENT = frozenset({"content-length", "expect", "user-agent"})  # libcurl writes them itself
_LISTING = "before-send.s3.ListObjectsV2"


@dataclass
class Call:
    """One call of a method of botocore's client, of whatever number of requests.

    Many loads share a client, each with its own bounds: so they come with the call.

    Attributes:
        way: Gives certificates, proxy and headers of the reads of a URL.
        sender: Bounds and repeats its requests.
        has_answer: A request was answered, so that a later failure is about its content.
        attempts: How often the last request was sent.
        began_s: When the first was sent, by `time.monotonic`.
    """

    way: Callable[[str], HttpSource]
    sender: Sender
    has_answer: bool = False
    attempts: int = 1
    began_s: float = field(default_factory=monotonic)

    def send(self, request: Any) -> Response:
        """Send a request of botocore until it is answered."""
        headers = {name: _text(value) for name, value in request.headers.items() if name.lower() not in _NOT_SENT}
        note_credential(headers.get("X-Amz-Security-Token"))  # only this is sent, so that a server may repeat it
        source = self.way(request.url)
        source = replace(source, headers={**headers, **source.headers})
        response, attempts = self.sender.answer(source, request.method, _body_of(request), began_s=self.began_s)
        self.has_answer, self.attempts = True, attempts.number
        return response


_call: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """Let the requests of this thread belong to a call."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def send_natively(client: Any) -> None:
    """Make a client of botocore send its requests so."""
    client.meta.events.register_last("before-send.s3", _send, unique_id="streamer-send")


def _send(request: Any, event_name: str = "", **_: Any) -> AWSResponse | None:
    call = _call.get()
    if call is None:  # of a signature that needs a request of its own
        return None
    response = call.send(request)
    if event_name == _LISTING and response.status == 200:
        refuse_foreign_listing(request.url, response)
    return AWSResponse(request.url, response.status, response.headers, _Raw(response.body))


def _body_of(request: Any) -> bytes:
    body = request.body
    body = body.read() if hasattr(body, "read") else body  # framed, or a file
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    """A body that is there, with the methods that botocore calls on that of its HTTP library."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body

    def read(self, _: int | None = None) -> bytes:
        return self._body

    def close(self) -> None:
        pass
