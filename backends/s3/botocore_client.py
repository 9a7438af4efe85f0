"""The S3 control plane by botocore: its client makes, signs and parses requests, and the engine sends them.

Guarantees: options of the user (arguments, fsspec configuration, AWS environment) are never overridden, changed in
place or written back. A request ends within its attempts and the time of `answer_times`. If the clock of this machine
is wrong, signatures are made at the server's time. Refuses unverified TLS, and follows no redirect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError

from streamer.backends.client.answer_values import TOLERANCE_S, clock_offset_s
from streamer.backends.s3.answers import ForeignAnswerError, RefusedError
from streamer.backends.s3.botocore_login import check_tenant, is_amazon, shared_login
from streamer.backends.s3.errors import MalformedAnswerError
from streamer.backends.s3.options import endpoint_of, filled_options, times_of, with_encoded_key
from streamer.backends.s3.sender import Sender, user_agent_of
from streamer.backends.s3.signing import (
    LONGEST_URL,
    UrlTemplate,
    host_of,
    presigned,
    presigned_get,
    signed_at_offset,
    template_of,
)
from streamer.backends.s3.transport import Call, Signing, calling
from streamer.core.errors import StreamerError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.hidden_arguments import SecretOptions, plain
from streamer.core.store.identities import digest_of
from streamer.core.store.sources import HttpSource

__all__ = ["BotocoreClient"]

DEFAULT_LIMITS = Limits()
PART_LIFETIME_S = 3600  # lifetime of a signature that sends a part; slow parts and retries use it, too

_Answer = TypeVar("_Answer")

# Exceptions that are not about the text of an answer; any other exception means that botocore could not parse it.
_NOT_OF_TEXT = (BotoCoreError, ClientError, ForeignAnswerError, RecursionError, StreamerError)


class BotocoreClient:
    """Sends requests about objects, and signs URLs for them, with one login."""

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        environment = set_variables()
        options = filled_options(storage_options, environment)
        self._limits, self._times = limits, times_of(options, limits)
        self._user_agent: str | None = options["config_kwargs"].get("user_agent")
        self._login = shared_login(options)
        self.endpoint = endpoint_of(options, environment)
        self.is_anonymous = bool(options.get("anon"))
        payer = {"RequestPayer": "requester"} if options.get("requester_pays") else {}
        self._settings = SecretOptions({**payer, **with_encoded_key(options.get("s3_additional_kwargs") or {})})
        self._signs_headers = bool((options["config_kwargs"].get("s3") or {}).get("payload_signing_enabled"))
        self._headers_of_get: Mapping[str, str] = {}
        self._clock_offset_s = 0.0
        self._templates: dict[tuple[str, int], UrlTemplate | None] = {}  # by bucket and lifetime

    def call(self, method: str, bucket: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the botocore client; exceptions of botocore pass through.

        If S3 refuses a request and its time differs from this machine's, the request is signed for the server's time
        and sent once more.
        """
        wanted = self._with_settings(method, parameters)
        answer = self._at_its_time(lambda: self._bounded_call(method, bucket, wanted))
        self._notes_clock(answer)
        if "Body" in answer:  # the body was requested only to get the reason of a refusal
            answer.pop("Body").close()
        return answer

    def signed_get(self, bucket: str, lifetime_s: int, **parameters: Any) -> str:
        """Return a URL that is valid for `lifetime_s`; for anonymous use, return a URL without a signature.

        botocore builds the host from region, endpoint and addressing style, and signs with the current credentials; if
        a redirect named the region of the bucket, it signs for that region. For some seconds, a template signs further
        URLs of the bucket.
        """
        template = self._templates.get((bucket, lifetime_s))
        is_plain = not self._settings and list(parameters) == ["Key"]
        if template is not None and is_plain and (url := template.url(parameters["Key"])) is not None:
            return url
        client = self._client_of(bucket)
        with signed_at_offset(self._clock_offset_s), calling(Signing()) as signing:
            wanted = self._with_settings("get_object", parameters)
            url = presigned_get(client, lifetime_s, Bucket=bucket, **plain(wanted))
            self._headers_of_get = signing.headers
            if is_plain:
                self._templates[bucket, lifetime_s] = template_of(client, url, parameters["Key"])
        return url

    def get_source(self, bucket: str, lifetime_s: int, *, in_headers: bool = False, **parameters: Any) -> HttpSource:
        """Return the source for an object, signed as by `signed_get`, or in headers.

        A token of single sign-on may have several KiB. With it, a URL would be longer than many proxies accept.
        """
        if not (in_headers or self._signs_headers):
            source = self.source_for(self.signed_get(bucket, lifetime_s, **parameters))
            if len(source.url) <= LONGEST_URL:
                return replace(source, headers={**self._headers_of_get, **source.headers})
        with signed_at_offset(self._clock_offset_s), calling(Signing()) as signing:
            self._client_of(bucket).get_object(Bucket=bucket, **plain(self._with_settings("get_object", parameters)))
        source = self.source_for(signing.url)
        return replace(source, headers={**signing.headers, **source.headers})

    def takes_checksums(self) -> bool:
        """Say whether uploads may carry checksums that S3 does not require; some S3-compatible servers lack them."""
        config = self._login.client().meta.config
        return getattr(config, "request_checksum_calculation", None) != "when_required"  # old releases lack it

    def settings_identity(self) -> str | None:
        """Return a digest of the settings of all requests, "" without any; None if one of them has no plain value."""
        return (digest_of(self._settings) or None) if self._settings else ""

    def put_part(self, bucket: str, part: memoryview, crc32c: str, **parameters: Any) -> Mapping[str, str]:
        """Send one part of an object by a signed URL, straight from its memory; return the headers of the answer.

        If such a URL is too long or forbidden, the signature is in headers, and the part is copied.
        """
        parameters = {**parameters, "ChecksumCRC32C": crc32c}
        if not self._signs_headers:
            try:
                headers = self._at_its_time(lambda: self._put_signed(bucket, parameters, part))
            except RefusedError as error:
                if not _may_be_of_url(error):
                    raise
            else:
                if headers is not None:
                    return headers
        answer = self.call("upload_part", bucket, Body=bytes(part), **parameters)
        self._signs_headers = True
        return {"etag": answer.get("ETag", ""), "x-amz-checksum-crc32c": answer.get("ChecksumCRC32C", "")}

    def endpoint_and_keys(self) -> tuple[str, tuple[str | None, str | None] | None]:
        """Return the endpoint, for Amazon its partition; and the access key and token, None for anonymous requests."""
        client = self._login.client()
        endpoint = client.meta.partition if is_amazon(client) else client.meta.endpoint_url.rstrip("/")
        return endpoint, self._login.keys()

    def forget_templates(self) -> None:
        """Discard the templates, so that current credentials sign the next URL of each bucket."""
        self._templates.clear()

    def source_for(self, url: str) -> HttpSource:
        """Return the source for a signed URL, with the signed headers and the options' certificates, proxy and name."""
        config = self._login.client().meta.config  # its `user_agent` is botocore's combination of all three options
        default = getattr(self._login.session.get_default_client_config(), "user_agent", None)
        name = user_agent_of(self._user_agent or default, config.user_agent_appid, config.user_agent_extra)
        named = config.client_cert  # one file, or a pair: the certificate and its key
        certificate, key = (named, None) if named is None or isinstance(named, str) else named
        return HttpSource(
            url,
            host_of(url) | ({"User-Agent": name} if name else {}),
            ca_file=self._login.ca_file(),
            proxy=(config.proxies or {}).get(url.partition(":")[0]),
            client_cert=certificate,
            client_key=key,
        )

    def _put_signed(self, bucket: str, parameters: Mapping[str, Any], part: memoryview) -> Mapping[str, str] | None:
        """Send a part by a signed URL and return the headers of the answer; None if the URL would be too long."""
        wanted = self._with_settings("upload_part", {"Bucket": bucket, **parameters})
        client, call = self._client_of(bucket), self._new_call()
        with signed_at_offset(self._clock_offset_s), calling(Signing()) as signing:
            url = presigned(client, "upload_part", PART_LIFETIME_S, plain(wanted))
        if len(url) > LONGEST_URL:
            return None
        source = self.source_for(url)
        source = replace(source, headers={**source.headers, **signing.headers})
        answer, attempts = call.sender.answer(source, "PUT", part)
        if answer.status != 200:
            raise RefusedError(answer, attempts)
        return answer.headers

    def _bounded_call(self, method: str, bucket: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        client, call = self._client_of(bucket), self._new_call()
        with signed_at_offset(self._clock_offset_s), calling(call):
            try:
                answer: dict[str, Any] = getattr(client, method)(Bucket=bucket, **plain(parameters))
            except Exception as error:
                if isinstance(error, ClientError):
                    error.response.setdefault("ResponseMetadata", {})["RetryAttempts"] = call.attempts - 1
                is_of_text = isinstance(error, InvalidRegionError) or not isinstance(error, _NOT_OF_TEXT)
                if not (call.has_answer and is_of_text):
                    raise
                raise MalformedAnswerError from error
        return answer

    def _with_settings(self, method: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add those of ``s3_additional_kwargs`` that this request has, as s3fs does."""
        if not self._settings:
            return parameters
        meta = self._login.client().meta
        known = meta.service_model.operation_model(meta.method_to_api_mapping[method]).input_shape.members
        wanted = SecretOptions({name: self._settings[name] for name in self._settings if name in known})
        wanted.update(parameters)
        if "Metadata" in wanted:
            wanted["Metadata"] = {**(self._settings.get("Metadata") or {}), **wanted["Metadata"]}
        return wanted

    def _client_of(self, bucket: str) -> Any:
        client = self._login.client()
        check_tenant(client, bucket)
        return client

    def _new_call(self) -> Call:
        return Call(self.source_for, Sender(self._times, self._limits.answer_bytes, self._login.attempts()))

    def _at_its_time(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request; if it is refused and the server has another time than its signature, sign and send again."""
        offset_s = self._clock_offset_s
        try:
            return request()
        except (ClientError, RefusedError) as error:
            self._notes_clock(error.response)  # another thread may have noted it first
            if abs(self._clock_offset_s - offset_s) <= TOLERANCE_S or not 400 <= _status(error.response) < 404:
                raise
        return request()

    def _notes_clock(self, answer: Mapping[str, Any]) -> None:
        """Compare the server's time with this machine's, and keep the difference."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        offset_s = clock_offset_s(date, time.time())
        if offset_s is None or abs(offset_s - self._clock_offset_s) <= TOLERANCE_S:
            return
        self._clock_offset_s = offset_s
        self._templates.clear()


def _may_be_of_url(error: RefusedError) -> bool:
    """Say whether a server may refuse a request only because the signature is in its URL."""
    code = error.response["Error"].get("Code")
    return _status(error.response) == HTTPStatus.REQUEST_URI_TOO_LONG or code == "AccessDenied"


def _status(answer: Mapping[str, Any]) -> int:
    status: int = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status
