"""Sends the requests of S3's control plane, and decides about their trusted certificates and retries.

Guarantees: requests are only retried and bounded here. One rule for trusted certificates serves all settings, the
engine and our requests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

from streamer.backends.client.answer_times import AnswerTimes
from streamer.backends.client.answer_values import refuse_cut
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.retry import Attempts, answered
from streamer.core.secrets.environment import variable
from streamer.core.store.sources import HttpSource

__all__ = ["Sender", "ca_file_of"]

_CA_OPTION = "client_kwargs={'verify': '/path/ca.pem'}, AWS_CA_BUNDLE=/path/ca.pem"


def ca_file_of(verify: object, environment: Mapping[str, str], configured: str | None = None) -> str | None:
    """Return the first file that is named, in botocore's order and with ``SSL_CERT_FILE``; None for the system's."""
    if isinstance(verify, (str, os.PathLike)) and os.fspath(verify):
        return os.fspath(verify)
    aws, ours, requests = (
        variable(name, environment) for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    )
    return aws or ours or configured or requests


@dataclass(frozen=True)
class Sender:
    """Bounds of a request and its answer."""

    times: AnswerTimes  # how long an answer may take
    most_bytes: int  # largest body of an answer
    most_attempts: int  # highest number of attempts of a request

    def answer(
        self,
        source: HttpSource,
        method: str,
        body: bytes | memoryview = b"",
        *,
        began_s: float | None = None,
        is_document: bool = False,
    ) -> tuple[Response, Attempts]:
        """Return the whole answer, of any status, and the attempts that it took; a document that is cut is retried."""
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
            if is_document and response.status == 200:
                refuse_cut(response.body)
            return response

        return answered(once, times, None, self.most_attempts)
