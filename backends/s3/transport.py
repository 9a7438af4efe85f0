"""Sends the requests of a client of aiobotocore over the engine's connections, in place of its own HTTP library.

botocore makes, signs, repeats and parses the requests as before: the handler of its public event ``before-send`` may
answer one. https://docs.aws.amazon.com/boto3/latest/guide/events.html

Guarantees: a request takes the way of the reads (certificates, proxy, ``User-Agent``); redirects are answers and not
followed, so that no session token reaches another host. A failure is raised as botocore's own exception, with the
engine's error in its ``kwargs``, so that botocore repeats the request as it would with its own library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

from aiobotocore.awsrequest import AioAWSResponse
from botocore import exceptions as boto
from botocore.awsrequest import HeadersDict

from streamer.backends.client.answer_times import AnswerTimes
from streamer.backends.client.exchange import send
from streamer.backends.client.retry import may_pass
from streamer.backends.s3.foreign_answers import refuse_foreign_listing
from streamer.core.errors import ConnectError, StreamerError, TlsError, TransferTimeoutError
from streamer.core.in_thread import in_thread
from streamer.core.store.sources import HttpSource

__all__ = ["Call", "calling", "is_final", "send_natively"]

_NOT_SENT = frozenset({"content-length", "expect", "user-agent"})  # libcurl writes them itself
_KINDS: dict[type[StreamerError], Callable[..., Exception]] = {
    TlsError: boto.SSLError,
    TransferTimeoutError: boto.ReadTimeoutError,
    ConnectError: boto.EndpointConnectionError,
}
_FINAL: Callable[..., Exception] = boto.HTTPClientError
_CA_OPTION = "client_kwargs={'verify': '/path/ca.pem'}, AWS_CA_BUNDLE=/path/ca.pem"
_LISTING = "before-send.s3.ListObjectsV2"


@dataclass
class Call:
    """One call of a method of botocore's client, of whatever number of requests.

    A client belongs to a file system, which many loads share, each with its own bounds: so they come with the call. Nor
    does it hold the load's client, which a thread would keep for a moment longer than the load.

    Attributes:
        way: Certificates and headers of the reads.
        proxies: Those that the options name, by scheme.
        times: How long an answer may take.
        most_bytes: Its largest body.
        has_answer: A request was answered, so that a later failure is about its content.
        began_s: When the first was sent, by `time.monotonic`.
    """

    way: HttpSource
    proxies: Mapping[str, str] = field(repr=False)
    times: AnswerTimes
    most_bytes: int
    has_answer: bool = False
    began_s: float = field(default_factory=monotonic)


_call: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """Let the requests of this task belong to a call."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def send_natively(client: Any) -> None:
    """Make a client of aiobotocore send the requests of our calls so; may be called repeatedly."""
    client.meta.events.register_last("before-send.s3", _send, unique_id="streamer-send")


def is_final(error: BaseException | None) -> bool:
    """Whether botocore should not repeat a request that ended so."""
    reason = getattr(error, "kwargs", {}).get("error")
    return type(error) is _FINAL or (isinstance(reason, StreamerError) and not may_pass(reason))


async def _send(request: Any, event_name: str = "", **_: Any) -> AioAWSResponse | None:
    call = _call.get()
    if call is None:  # a request of the user's, to whom the instance of s3fs belongs
        return None
    headers = {name: _text(value) for name, value in request.headers.items() if name.lower() not in _NOT_SENT}
    proxy = call.proxies.get(request.url.partition(":")[0])
    source = replace(call.way, url=request.url, headers={**headers, **call.way.headers}, proxy=proxy)
    request_of_engine = partial(
        send,
        source,
        call.times,
        method=request.method,
        body=await _body_of(request),
        head_timeout_s=call.times.left_s(monotonic() - call.began_s),
        ca_option=_CA_OPTION,
    )
    try:
        response = await in_thread(request_of_engine, role="request")
    except StreamerError as error:
        raise _as_botocores(error, request.url) from error
    try:
        await in_thread(lambda: response.read(call.most_bytes), role="request")
    except ConnectError as error:
        raise _as_botocores(error, request.url) from error
    except StreamerError as error:  # too long, or too slow: it would be again
        raise _FINAL(error=error) from error
    call.has_answer = True
    if event_name == _LISTING and response.status == 200:
        refuse_foreign_listing(request.url, response)
    return AioAWSResponse(request.url, response.status, HeadersDict(response.headers), _Raw(response.body))


async def _body_of(request: Any) -> bytes:
    body = request.body
    if hasattr(body, "read"):  # framed, or a file
        body = body.read()
        body = await body if inspect.isawaitable(body) else body
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _as_botocores(error: StreamerError, url: str) -> Exception:
    for cls, kind in _KINDS.items():
        if isinstance(error, cls):
            return kind(endpoint_url=url.partition("?")[0], error=error)
    return _FINAL(error=error)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    """A body that is there, with the methods that aiobotocore calls on that of its HTTP library."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self, _: int = -1) -> bytes:
        return self._body

    def close(self) -> None:
        pass
