"""The usual requests about objects in S3 (size and version, listing, signed URL) with a plain login.

Guarantees: what is returned is what botocore would return; its own signers sign, or what agreed with them. Only an
answer that is exactly as expected counts, at once and from the server that was asked: everything else is left to
botocore. The only errors that are raised here are those of a server which wants to be left alone, as botocore would ask
again at once, and of a host that does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from streamer.backends.client.answer_times import AnswerTimes
from streamer.backends.client.answer_values import parse_word
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.error_rows import row_of_status
from streamer.backends.client.exchange import Response, send
from streamer.backends.s3.clock import clock_offset_s
from streamer.backends.s3.listing_page import parse_page
from streamer.backends.s3.plain_login import PlainLogin
from streamer.backends.s3.url_template import PLAIN_KEY, UrlTemplate
from streamer.core.collector import collector_paused
from streamer.core.errors import StorageError
from streamer.core.outages.transient import STATUSES, UNKNOWN_HOST
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource

__all__ = ["PlainRequests"]

PATIENCE_S = 1.5  # then botocore asks, which may reach another server behind the same address
_PATIENT = ("connect_s", "headers_s", "silence_s")
_SERVICE = "s3"
_PARAMETERS = {"head_object": {"Key"}, "list_objects_v2": {"Prefix", "Delimiter", "ContinuationToken"}}


class PlainRequests:
    """Sends requests with one login.

    Args:
        login: Where to, and with what keys.
        most_bytes: Largest answer.
        times: How long an answer may take; here at most `PATIENCE_S`.
    """

    def __init__(self, login: PlainLogin, most_bytes: int, times: AnswerTimes) -> None:
        self._login = login
        self._most_bytes = most_bytes
        self._times = replace(times, **{name: min(PATIENCE_S, getattr(times, name)) for name in _PATIENT})
        self._templates: dict[tuple[str, int], UrlTemplate | None] = {}  # by bucket and lifetime
        note_credential(login.keys.token if login.keys else None)

    @staticmethod
    def serves(method: str, parameters: Mapping[str, Any]) -> bool:
        """Whether `call` knows such a request."""
        key = parameters.get("Key", "plain")
        return parameters.keys() <= _PARAMETERS.get(method, set()) and PLAIN_KEY.fullmatch(key) is not None

    def call(self, method: str, bucket: str, parameters: Mapping[str, str]) -> dict[str, Any] | None:
        """Send a request that is served; return what botocore's client would, or None to ask that."""
        url = self._login.url_of(bucket)
        if url is None:
            return None
        if method == "head_object":
            return _head_of(self._ask(f"{url}/{parameters['Key']}", is_head=True))
        answer = self._ask(f"{url}?{_query(parameters)}")
        return None if answer is None else parse_page(answer.body)

    def signed_get(self, bucket: str, lifetime_s: int, key: str) -> str | None:
        """Sign the URL of one object, or return None to ask botocore."""
        url = self._login.url_of(bucket)
        if url is None or not PLAIN_KEY.fullmatch(key):
            return None
        keys, template = self._login.keys, self._templates.get((bucket, lifetime_s))
        if keys is None:
            return f"{url}/{key}"
        if template is not None and (signed := template.url(key)) is not None:
            return signed
        auth, new_request = _signers()
        request = new_request("GET", f"{url}/{key}")
        auth.S3SigV4QueryAuth(keys, _SERVICE, self._login.region, expires=lifetime_s).add_auth(request)
        self._templates[bucket, lifetime_s] = UrlTemplate.of(request.url, key, keys.secret_key)
        return str(request.url)

    def ca_file(self) -> str | None:
        """Return the certificates to trust, or None for the system's."""
        return self._login.ca_file

    def _ask(self, url: str, *, is_head: bool = False) -> Response | None:
        source = HttpSource(url, self._signed_headers("HEAD" if is_head else "GET", url), ca_file=self._login.ca_file)
        try:
            answer = send(source, self._times, method="HEAD" if is_head else "GET")
            answer.read(self._most_bytes)
        except StorageError as error:
            if error.code == UNKNOWN_HOST:
                raise
            return None  # botocore finds out why
        _keep_pause(answer)
        is_expected = answer.status == 200
        # A clock that is wrong is for the other client, which signs at the server's time.
        is_in_time = is_expected and not clock_offset_s(answer.headers.get("date"), time.time())
        return answer if is_in_time else None

    def _signed_headers(self, method: str, url: str) -> dict[str, str]:
        if self._login.keys is None:
            return {}
        auth, new_request = _signers()
        request = new_request(method, url)
        auth.S3SigV4Auth(self._login.keys, _SERVICE, self._login.region).add_auth(request)
        return {name: str(value) for name, value in request.headers.items()}


def _keep_pause(answer: Response) -> None:
    pause_s = demanded_pause_s(answer.status, answer.headers) if answer.status in STATUSES else 0.0
    if pause_s <= LONGEST_PAUSE_S:
        return
    row, request_id = row_of_status(answer.status, "S3 could not answer"), answer.headers.get("x-amz-request-id")
    raise row.error(None, status=answer.status, request_id=parse_word(request_id), retry_after_s=pause_s)


def _signers() -> tuple[Any, Any]:
    """Return botocore's module of signers, and the class of what they sign: an anonymous load imports neither."""
    with collector_paused():
        from botocore import auth  # noqa: PLC0415
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    return auth, AWSRequest


def _query(parameters: Mapping[str, str]) -> str:
    names = {"Prefix": "prefix", "Delimiter": "delimiter", "ContinuationToken": "continuation-token"}
    named = {names[name]: value for name, value in parameters.items()}
    return urlencode({"list-type": "2", "encoding-type": "url", **named}, quote_via=quote, safe="-_.~")


def _head_of(answer: Response | None) -> dict[str, Any] | None:
    length = "" if answer is None else answer.headers.get("content-length", "")
    if answer is None or not (length.isascii() and length.isdigit()):
        return None
    etag = answer.headers.get("etag")
    return {"ContentLength": int(length)} | ({"ETag": etag} if etag else {})
