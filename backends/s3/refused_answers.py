"""Refusals of S3 to requests that are not botocore's, in the form of botocore's exceptions."""

from __future__ import annotations

from typing import Any

from streamer.backends.client.exchange import Response
from streamer.backends.client.retry import Attempts
from streamer.backends.s3.documents import parse_error

__all__ = ["RefusedError"]


class RefusedError(Exception):
    """S3 refuses a request.

    Args:
        response: The answer.
        attempts: Those that it took.

    Attributes:
        response: What botocore's `ClientError` has under this name.
    """

    def __init__(self, response: Response, attempts: Attempts) -> None:
        super().__init__()
        metadata = {
            "HTTPStatusCode": response.status,
            "HTTPHeaders": response.headers,
            "RetryAttempts": attempts.number - 1,
        }
        self.response: dict[str, Any] = {"Error": parse_error(response.body), "ResponseMetadata": metadata}
