"""Recognises answers that are not S3 listings: pages of a console, a login or a proxy at a wrong endpoint.

botocore retries after an answer that is not XML, and reads other XML as an empty listing. Truncated listings and
``<Error>`` documents are left to botocore.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from streamer.backends.client.answer_values import parse_word
from streamer.backends.client.exchange import Response
from streamer.backends.client.quoted_answers import quoted_start
from streamer.core.errors import StorageError
from streamer.core.secrets.redact import redact

__all__ = ["ForeignAnswerError", "refuse_foreign_listing"]

LOOKED_AT_BYTES = 4096  # the root element of a listing comes soon after its XML declaration

_ROOT = re.compile(rb"<(?:[\w-]+:)?([A-Za-z][\w-]*)")
_DECLARED = re.compile(rb"\s*<\?xml[^>]*>?")


class ForeignAnswerError(Exception):
    """The answer to a request for a listing is not a listing.

    Args:
        endpoint: URL of the server.
        kind: Content type of the answer.
        body: Body of the answer.
    """

    def __init__(self, endpoint: str, kind: str, body: bytes) -> None:
        super().__init__()
        self._endpoint = redact(endpoint)
        self._kind = parse_word(kind.partition(";")[0].strip()) or "something"
        self._quote = quoted_start(body) if body.strip() else None

    def storage_error(self, uri: str) -> StorageError:
        """Return the error for the user."""
        what = "nothing" if self._quote is None else f"{self._kind} that begins {self._quote}"
        return StorageError(
            f"The endpoint {self._endpoint} does not speak S3: it answers the request for a listing with {what}",
            uri=uri,
            hint="Check endpoint_url: a console has another port than its S3, and a proxy may want a login",
        )


def refuse_foreign_listing(url: str, response: Response) -> None:
    """Raise `ForeignAnswerError` if a successful answer to a request for a listing is not a listing."""
    if not _may_be_listing(response.body[:LOOKED_AT_BYTES]):
        endpoint = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        raise ForeignAnswerError(endpoint, response.headers.get("content-type", ""), response.body)


def _may_be_listing(start: bytes) -> bool:
    start = start.removeprefix(b"\xef\xbb\xbf")
    declared = _DECLARED.match(start)
    rest = start[declared.end() if declared else 0 :].lstrip()
    root = _ROOT.match(rest)
    if root is None:  # truncated before the root, or an XHTML page
        return declared is not None and rest[:9].upper() != b"<!DOCTYPE"
    return root[1] in (b"ListBucketResult", b"Error")
