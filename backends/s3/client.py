"""The client of one load from S3: our own requests, and botocore for all requests that they do not support.

Guarantees: results are the same as botocore's. botocore's own signers sign, or a `UrlTemplate` that was checked against
them. If an answer needs more (another region, another clock, an unexpected document), the request is left to botocore.

botocore's client takes a tenth of a second to import and make. A load needs it for unusual options, for the region of a
redirect, and for a server with another clock. Once it has replaced a plain request, it sends all further requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.answer_values import clock_offset_s
from streamer.backends.client.exchange import Response
from streamer.backends.login_state import login_identity
from streamer.backends.s3.answers import FIELDS, RefusedError, parse_page, refuse_foreign_listing
from streamer.backends.s3.plain_login import PlainLogin, plain_login
from streamer.backends.s3.sender import Sender
from streamer.backends.s3.signing import LONGEST_URL, UrlTemplate, host_of, sign_for_host
from streamer.core.collector import collector_paused
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.hidden_arguments import SecretOptions
from streamer.core.secrets.texts import note_credential
from streamer.core.store.identities import digest_of
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    from streamer.backends.s3.botocore_client import BotocoreClient

__all__ = ["PlainRequests", "S3Client"]

_SERVICE = "s3"
_QUERY = {
    "ContinuationToken": "continuation-token",
    "Delimiter": "delimiter",
    "Prefix": "prefix",
    "VersionId": "versionId",
}
_HEADERS = {"ChecksumMode": "x-amz-checksum-mode", "Range": "range"}
_PARAMETERS = {
    "get_object": {"Key", "Range", "VersionId"},
    "head_object": {"ChecksumMode", "Key", "VersionId"},
    "list_objects_v2": {"ContinuationToken", "Delimiter", "Prefix"},
}
_OF_HEAD = {
    "ContentEncoding": "content-encoding",
    "ContentType": "content-type",
    "ETag": "etag",
    "ChecksumType": "x-amz-checksum-type",
    "VersionId": "x-amz-version-id",
} | {field: f"x-amz-checksum-{algorithm}" for field, algorithm in FIELDS.items()}
_OF_USER = "x-amz-meta-"

DEFAULT_LIMITS = Limits()

Answer = TypeVar("Answer")


class PlainRequests:
    """Sends requests with one login."""

    def __init__(self, login: PlainLogin, limits: Limits) -> None:
        self.login = login
        self._sender = Sender(answer_times(limits), limits.answer_bytes, login.most_attempts)
        self._templates: dict[tuple[str, int], UrlTemplate | None] = {}  # by bucket and lifetime

    def serves(self, method: str, bucket: str, parameters: Mapping[str, Any]) -> bool:
        """Say whether `call` supports such a request."""
        return parameters.keys() <= _PARAMETERS.get(method, set()) and self.login.url_of(bucket) is not None

    def call(self, method: str, bucket: str, parameters: Mapping[str, str]) -> dict[str, Any] | None:
        """Send a supported request; return the same as botocore's client, or None to leave it to that client."""
        is_listing = method == "list_objects_v2"
        url = self._url(bucket, parameters, {"list-type": "2", "encoding-type": "url"} if is_listing else {})
        headers = {_HEADERS[name]: value for name, value in parameters.items() if name in _HEADERS}
        answer = self._answer_to("HEAD" if method == "head_object" else "GET", url, headers, is_document=is_listing)
        if answer is None:
            return None
        if is_listing:
            refuse_foreign_listing(url, answer)
            return parse_page(answer.body)
        return _head_of(answer)

    def signed_get(self, bucket: str, lifetime_s: int, parameters: Mapping[str, str]) -> str:
        """Sign the URL of one object, if `serves` accepts a HEAD with these parameters."""
        key, is_plain = parameters["Key"], list(parameters) == ["Key"]
        template = self._templates.get((bucket, lifetime_s))
        if template is not None and is_plain and (signed := template.url(key)) is not None:
            return signed
        url = self._url(bucket, parameters, {})
        keys = self.login.keys and self.login.keys()
        if keys is None:
            return url
        auth, new_request = _signers()
        request = new_request("GET", url)
        sign_for_host(request)
        auth.S3SigV4QueryAuth(keys, _SERVICE, self.login.region, expires=lifetime_s).add_auth(request)
        if is_plain:
            self._templates[bucket, lifetime_s] = UrlTemplate.of(request.url, key, keys.secret_key)
        return str(request.url)

    def endpoint_and_keys(self) -> tuple[str, tuple[str | None, str | None] | None]:
        """See `BotocoreClient.endpoint_and_keys`."""
        keys = self.login.keys and self.login.keys()
        return self.login.endpoint or "aws", None if keys is None else (keys.access_key, keys.token)

    def get_source(
        self, bucket: str, lifetime_s: int, parameters: Mapping[str, str], *, in_headers: bool
    ) -> HttpSource:
        """Return the source for one object, signed in its URL, or in headers if the URL would be too long."""
        if not in_headers:
            source = self.source_for(self.signed_get(bucket, lifetime_s, parameters))
            if len(source.url) <= LONGEST_URL:
                return source
        url = self._url(bucket, parameters, {})
        return self.source_for(url, self._signed("GET", url, {}))

    def source_for(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> HttpSource:
        """Return the source for a URL."""
        return HttpSource(url, {**headers, **host_of(url)}, ca_file=self.login.ca_file)

    def _url(self, bucket: str, parameters: Mapping[str, str], query: Mapping[str, str]) -> str:
        key = parameters.get("Key")
        path = "" if key is None else f"/{quote(key, safe='/~')}"
        named = {**query, **{_QUERY[name]: value for name, value in parameters.items() if name in _QUERY}}
        return f"{self.login.url_of(bucket)}{path}" + (f"?{_encoded(named)}" if named else "")

    def _answer_to(self, method: str, url: str, headers: Mapping[str, str], *, is_document: bool) -> Response | None:
        source = self.source_for(url, self._signed(method, url, headers))
        response, attempts = self._sender.answer(source, method, is_document=is_document)
        status, offset_s = response.status, clock_offset_s(response.headers.get("date"), time.time())
        if status in STATUSES or (status > 400 and not offset_s):
            raise RefusedError(response, attempts)
        return response if status in (200, 206) and not offset_s else None  # 400 and redirects may name another region

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        keys = self.login.keys and self.login.keys()
        if keys is None:
            return dict(headers)
        note_credential(keys.token)  # the only credential that is sent as it is, so a server may repeat it
        auth, new_request = _signers()
        request = new_request(method, url, headers=headers)
        sign_for_host(request)
        auth.S3SigV4Auth(keys, _SERVICE, self.login.region).add_auth(request)
        return {name: str(value) for name, value in request.headers.items()}


def _signers() -> tuple[Any, Any]:
    """Return botocore's module of signers, and the class of its requests; an anonymous load imports neither."""
    with collector_paused():
        from botocore import auth  # noqa: PLC0415
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    return auth, AWSRequest


def _encoded(query: Mapping[str, str]) -> str:
    return urlencode(query, quote_via=quote, safe="-_.~")


def _head_of(answer: Response) -> dict[str, Any]:
    length = answer.headers.get("content-length", "")
    of_length = {"ContentLength": int(length)} if length.isascii() and length.isdigit() else {}
    named = {name: answer.headers.get(header) for name, header in _OF_HEAD.items()}
    of_user = {name[len(_OF_USER) :]: value for name, value in answer.headers.items() if name.startswith(_OF_USER)}
    present = {name: value for name, value in named.items() if value}
    return {**of_length, "Metadata": of_user} | present


if find_spec("s3fs") is None:  # the options are those of s3fs, and s3fs installs botocore
    raise ModuleNotFoundError("No module named 's3fs'", name="s3fs")


class S3Client:
    """Sends requests about objects, and signs URLs for them.

    Attributes:
        endpoint: The URL that requests are sent to; None for Amazon's own endpoint.
        is_anonymous: Requests are not signed.
        has_unused_keys: The options have a key, which is not used because of ``anon=True``.
    """

    def __init__(self, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = SecretOptions(storage_options)
        self._limits = limits
        self._lock = threading.Lock()
        self._botocore_client: BotocoreClient | None = None  # made under the lock, when it is first needed
        self._plain = self._new_plain()
        self._signs_headers = False
        if self._plain is None:
            self.endpoint, self.is_anonymous = self._botocore().endpoint, self._botocore().is_anonymous
        else:
            self.endpoint, self.is_anonymous = self._plain.login.endpoint, self._plain.login.keys is None
        self.has_unused_keys = self.is_anonymous and any(storage_options.get(each) for each in ("key", "secret"))

    def call(self, method: str, bucket: str, **parameters: Any) -> dict[str, Any]:
        """Send a request, named like a method of botocore's client; return the same result as that method."""
        plain = self._plain
        if plain is not None and plain.serves(method, bucket, parameters):
            answer = plain.call(method, bucket, parameters)
            if answer is not None:
                return answer
            self._plain = None
        return self._asked(lambda client: client.call(method, bucket, **parameters))

    def put_part(self, bucket: str, part: memoryview, crc32c: str, **parameters: Any) -> Mapping[str, str]:
        """Send one part of an object; see `BotocoreClient.put_part`."""
        return self._asked(lambda client: client.put_part(bucket, part, crc32c, **parameters))

    def takes_checksums(self) -> bool:
        """Say whether uploads may carry checksums that S3 does not require."""
        return self._botocore().takes_checksums()

    def settings_identity(self) -> str | None:
        """See `BotocoreClient.settings_identity`."""
        return self._botocore().settings_identity()

    def get_source(self, bucket: str, lifetime_s: int, **parameters: Any) -> HttpSource:
        """Return the source for an object that is valid for `lifetime_s`; for anonymous use, it has no signature."""
        plain, in_headers = self._plain, self._signs_headers
        if plain is not None and plain.serves("head_object", bucket, parameters):
            return plain.get_source(bucket, lifetime_s, parameters, in_headers=in_headers)
        return self._botocore().get_source(bucket, lifetime_s, in_headers=in_headers, **parameters)

    def sign_headers(self) -> None:
        """Sign in headers from now on, because the server does not accept signatures in URLs."""
        self._signs_headers = True

    def login_identity(self) -> str:
        """Return what endpoint and login add to the identity of an object; empty if another process cannot have them.

        Amazon has one owner for each name of a bucket in a partition, so every login that may read gets the same bytes.
        Other servers may have tenants.
        """
        plain = self._plain
        endpoint, keys = self._botocore().endpoint_and_keys() if plain is None else plain.endpoint_and_keys()
        if not endpoint.startswith("http"):
            return digest_of(endpoint)
        access_key, token = keys or ("", None)
        login = login_identity(self._options) if token else access_key or "anonymous"
        return login and digest_of(endpoint, login)

    def renew(self) -> None:
        """Discard the templates, so that current credentials sign the next URL of each bucket."""
        if self._plain is not None:
            self._plain = self._new_plain()
        if self._botocore_client is not None or self._plain is None:
            self._botocore().forget_templates()

    def _new_plain(self) -> PlainRequests | None:
        login = plain_login(self._options, set_variables())
        return None if login is None else PlainRequests(login, self._limits)

    def _asked(self, request: Callable[[BotocoreClient], Answer]) -> Answer:
        """Send a request; if S3 says that the keys are no longer valid, look up new keys and repeat the request.

        Keys are replaced before they expire; this is for keys that end earlier, or whose provider names no time.
        """
        client = self._botocore()
        try:
            return request(client)
        except Exception as error:
            from streamer.backends.s3.errors import has_expired  # noqa: PLC0415 (imports botocore)

            if not has_expired(error):
                raise
            return request(self._botocore(refused=client))

    def _botocore(self, refused: BotocoreClient | None = None) -> BotocoreClient:
        """Return the client of botocore. If S3 refused the keys of `refused`, make a client with a new login."""
        with self._lock:
            if self._botocore_client is None or self._botocore_client is refused:
                with collector_paused():
                    from streamer.backends.s3.botocore_client import BotocoreClient  # noqa: PLC0415 (see above)
                options = SecretOptions(self._options)
                if refused is not None:
                    options["skip_instance_cache"] = True
                self._botocore_client = BotocoreClient(options, self._limits)
            return self._botocore_client
