"""Sends the requests of S3's control plane; only here they are retried and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from streamer.backends.client.answer_times import AnswerTimes
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.retry import Attempts, answered
from streamer.core.store.sources import HttpSource

__all__ = ["Sender"]

_CA_OPTION = "client_kwargs={'verify': '/path/ca.pem'}, AWS_CA_BUNDLE=/path/ca.pem"


@dataclass(frozen=True)
class Sender:
    """Bounds of a request and its answer.

    Attributes:
        times: How long an answer may take.
        most_bytes: Largest body of an answer.
        most_attempts: Highest number of attempts of a request.
    """

    times: AnswerTimes
    most_bytes: int
    most_attempts: int

    def answer(
        self, source: HttpSource, method: str, body: bytes | memoryview = b"", *, began_s: float | None = None
    ) -> tuple[Response, Attempts]:
        """Return the whole answer, of any status, and the attempts that it took.

        Args:
            source: URL, headers, certificates and proxy.
            method: HTTP method.
            body: Body of the request.
            began_s: Begin of the first of several requests that share their time, by `time.monotonic`.

        Raises:
            StorageError: there is no answer.
        """
        times = self.times.with_upload(len(body))

        def once(attempts: Attempts) -> Response:
            left_s = attempts.head_timeout_s
            response = send(
                source,
                times,
                method=method,
                body=body,
                head_timeout_s=left_s if began_s is None else min(left_s, times.left_s(monotonic() - began_s)),
                is_repeated=attempts.is_repeated,
                ca_option=_CA_OPTION,
            )
            response.read(self.most_bytes)
            return response

        return answered(once, times, None, self.most_attempts)
