"""Every fault by name: what a server, a proxy or the network does wrong, and what a load through it must end with.

A fault is a function of the answer that would have been right. It may change the answer before it is sent, or send
bytes of its own and return True. Each says in one line what it does; `ends` is the class of the error a load ends with
when the fault never stops, None where it only takes longer.
"""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from faults.answer import Answer

ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>%s</Message><RequestId>FAULT</RequestId></Error>"
SLOW_BYTES_PER_S = 256 << 10
LATENCY_S = 0.3

Change = Callable[[Answer], bool]


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: How the command line and the tests call it.
        change: What it does to an answer; True when it has sent everything itself.
        ends: Name of the error class a load ends with if every answer has this fault; None: it ends well, late.
        is_lasting: An answer that was hit once stays wrong: the object itself, or the right to it, is another.
        is_silent: Only a load that verifies can notice; any other ends well, with wrong bytes.
    """

    name: str
    change: Change
    ends: str | None
    is_lasting: bool = False
    is_silent: bool = False

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.change.__doc__ or "").strip()


FAULTS: dict[str, Fault] = {}


def fault(ends: str | None, *, is_lasting: bool = False, is_silent: bool = False) -> Callable[[Change], Change]:
    """Enter a function into the catalogue under its own name."""

    def enter(change: Change) -> Change:
        FAULTS[change.__name__] = Fault(change.__name__, change, ends, is_lasting, is_silent)
        return change

    return enter


@fault("ConnectError")
def cut_at_0(answer: Answer) -> bool:
    """Announce the whole body, close the connection before its first byte."""
    return answer.send(body_bytes=0)


@fault("ConnectError")
def cut_at_1(answer: Answer) -> bool:
    """Close the connection after one byte of the body."""
    return answer.send(body_bytes=1)


@fault("ConnectError")
def cut_at_middle(answer: Answer) -> bool:
    """Close the connection in the middle of the body."""
    return answer.send(body_bytes=len(answer.body) // 2)


@fault("ConnectError")
def cut_at_last(answer: Answer) -> bool:
    """Close the connection one byte before the end of the body."""
    return answer.send(body_bytes=max(0, len(answer.body) - 1))


@fault("ConnectError")
def cut_without_length(answer: Answer) -> bool:
    """Leave the length out and close in the middle: to HTTP/1.0 that is a complete body."""
    answer.headers.pop("Content-Length", None)
    answer.headers["Connection"] = "close"
    return answer.send(body_bytes=len(answer.body) // 2)


@fault(None)
def cut_before_last_chunk(answer: Answer) -> bool:
    """Send the whole body in chunks and close the connection before the chunk that ends it."""
    return _without_last_chunk(answer, then_close=True)


@fault(None)
def no_last_chunk(answer: Answer) -> bool:
    """Send the whole body in chunks and leave the connection open without the chunk that ends it."""
    return _without_last_chunk(answer, then_close=False)


@fault("ConnectError")
def reset(answer: Answer) -> bool:
    """Reset the connection (RST) in the middle of the body."""
    answer.send(body_bytes=len(answer.body) // 2)
    return _reset(answer)


@fault("ConnectError")
def reset_before_the_answer(answer: Answer) -> bool:
    """Reset the connection without a single byte of an answer, as a server that just died."""
    return _reset(answer)


@fault("TransferTimeoutError")
def stall(answer: Answer) -> bool:
    """Send half of the body and then nothing, with the connection open."""
    answer.send(body_bytes=len(answer.body) // 2, then_close=False)
    answer.wait_for_end()
    return True


@fault("TransferTimeoutError")
def silence(answer: Answer) -> bool:
    """Take the request and never answer."""
    answer.wait_for_end()
    return True


@fault(None)
def slow_connection(answer: Answer) -> bool:
    """Send the body at 256 KiB/s."""
    answer.send(bytes_per_s=SLOW_BYTES_PER_S)
    return True


@fault(None)
def latency(answer: Answer) -> bool:
    """Wait 0.3 s before the first byte."""
    answer.sleep(LATENCY_S)
    return False


@fault("HttpStatusError")
def http_500(answer: Answer) -> bool:
    """Answer 500 InternalError."""
    return answer.become(500, ERROR % (b"InternalError", b"We encountered an internal error."))


@fault("HttpStatusError")
def http_503(answer: Answer) -> bool:
    """Answer 503 SlowDown, as S3 does when it throttles."""
    return answer.become(503, ERROR % (b"SlowDown", b"Please reduce your request rate."))


@fault("HttpStatusError")
def http_429(answer: Answer) -> bool:
    """Answer 429 with Retry-After: 1."""
    answer.become(429, ERROR % (b"TooManyRequests", b"Slow down."))
    answer.headers["Retry-After"] = "1"
    return False


@fault("HttpStatusError")
def http_502_page(answer: Answer) -> bool:
    """Answer 502 with the web page of a proxy."""
    answer.become(502, b"<html><body>Bad Gateway</body></html>")
    answer.headers["Content-Type"] = "text/html"
    return False


@fault("RangeResponseError")
def other_range(answer: Answer) -> bool:
    """Send another range of the same length, and say so in Content-Range."""
    if answer.begin > 0:
        answer.begin, answer.end = answer.begin - 1, answer.end - 1
    elif answer.end < len(answer.data):
        answer.begin, answer.end = answer.begin + 1, answer.end + 1
    answer.take_range()
    return False


@fault("RangeResponseError")
def shorter_range(answer: Answer) -> bool:
    """Send, correctly announced, only the first half of the range."""
    answer.end = answer.begin + max(1, (answer.end - answer.begin) // 2)
    answer.take_range()
    return False


@fault("RangeResponseError")
def ignored_range(answer: Answer) -> bool:
    """Ignore the range: the whole object under 200."""
    return answer.become(200, answer.data, keeps_headers=True)


@fault("HttpStatusError")
def xml_under_200(answer: Answer) -> bool:
    """Send an error document under 200, as S3 does when it fails after the status line."""
    answer.become(200, ERROR % (b"InternalError", b"We encountered an internal error."))
    answer.headers["Content-Type"] = "application/xml"
    return False


@fault("RangeResponseError")
def gzip_body(answer: Answer) -> bool:
    """Compress the range although identity was asked for."""
    answer.body = gzip.compress(answer.body, 1)
    answer.headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(answer.body))}
    return False


@fault("ChangedError", is_lasting=True)
def changed_etag(answer: Answer) -> bool:
    """Have another version of the object: 412 to If-Match, else other bytes under another ETag."""
    answer.headers["ETag"] = '"another-version"'
    if "if-match" in answer.request_headers:
        return answer.become(412, ERROR % (b"PreconditionFailed", b"At least one precondition failed."))
    answer.body = bytes(byte ^ 0xFF for byte in answer.body)
    return False


@fault("CredentialsError")
def expired_signature(answer: Answer) -> bool:
    """Refuse the signature as expired."""
    return answer.become(403, ERROR % (b"AccessDenied", b"Request has expired"))


@fault("RedirectError", is_lasting=True)
def redirect_elsewhere(answer: Answer) -> bool:
    """Redirect to another host."""
    answer.become(302, b"")
    answer.headers["Location"] = "http://127.0.0.2:9/elsewhere"
    return False


@fault("ObjectNotFoundError", is_lasting=True)
def vanished(answer: Answer) -> bool:
    """Answer 404 NoSuchKey: the object was deleted."""
    return answer.become(404, ERROR % (b"NoSuchKey", b"The specified key does not exist."))


@fault("ChecksumError", is_silent=True)
def flipped_byte(answer: Answer) -> bool:
    """Flip one bit in the middle of the body, as a memory without error correction does."""
    middle = len(answer.body) // 2
    answer.body = answer.body[:middle] + bytes([answer.body[middle] ^ 1]) + answer.body[middle + 1 :]
    return False


def _without_last_chunk(answer: Answer, *, then_close: bool) -> bool:
    del answer.headers["Content-Length"]
    answer.headers["Transfer-Encoding"] = "chunked"
    answer.body = b"%x\r\n%b\r\n" % (len(answer.body), answer.body)
    answer.send(body_bytes=len(answer.body), then_close=then_close)
    if not then_close:
        answer.wait_for_end()
    return True


def _reset(answer: Answer) -> bool:
    now = struct.pack("ii", 1, 0)  # SO_LINGER, no time: closing drops what is unsent and sends RST
    answer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    answer.close()
    return True
