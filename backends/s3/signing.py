"""Signs requests to S3, and URLs that read one object or write a part of one: at the right time, for the right region.

botocore's own ``generate_presigned_url`` prefers the global endpoint, which redirects. It signs for the region of the
client, which is wrong if a redirect named another region. Handlers of botocore's public events correct both.
https://docs.aws.amazon.com/boto3/latest/guide/events.html

botocore takes 0.2 ms to sign a URL, and a millisecond to find the endpoint of its bucket again. A checkpoint of a
thousand shards would wait for the signatures as long as for its data. So botocore signs the first URL, and a template
of it signs those that only differ in the object. Guarantees: there is no template unless it signs its own URL exactly
as botocore did. https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html

S3 refuses a signature whose time is a quarter of an hour off, and checks the expiry of a signed URL by its own clock.
Every answer has the server's time, even a refusal. A difference that matters is added to the time of later signatures.
The clock of this machine, and of every other library in the process, is not changed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from streamer.backends.private_names.botocore import change_before_signing, request_signer

__all__ = [
    "LONGEST_URL",
    "PLAIN_KEY",
    "UrlTemplate",
    "host_of",
    "hold_to_region",
    "presigned",
    "presigned_get",
    "sign_for_host",
    "sign_at_offset",
    "signed_at_offset",
    "template_of",
]

LONGEST_URL = 4096  # of characters, signature included; many servers and proxies accept lines of 8 KiB

_offset_s: ContextVar[float] = ContextVar("offset_s", default=0.0)
_TIMESTAMP = "%Y%m%dT%H%M%SZ"  # of SigV4, as botocore writes it into the context of a request

# Keys that stand in a URL without quoting.
PLAIN_KEY = re.compile(r"(?:(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.~-]+(?:/(?!\Z)|\Z))+", re.ASCII)
# After this time, credentials or the bucket's region may have changed. All signatures of a template have its time, so
# they may expire up to `LIFETIME_S` earlier than new ones.
LIFETIME_S = 5.0

_ALGORITHM = "AWS4-HMAC-SHA256"
_SIGNATURE = "&X-Amz-Signature="

_ID = "streamer-presigning"
_SIGNED = ("GetObject", "UploadPart")
_REGION = "streamer_region"  # in the context of a request, which all three events share
_GLOBAL = {"aws-global": "us-east-1"}  # a name of the global endpoint, and the region that its signatures name


def host_of(url: str) -> dict[str, str]:
    """Return the ``Host`` header that signatures of a URL cover; empty for a name that a header cannot hold.

    libcurl writes this header as it reads the URL: with capitals, or another notation of an address.

    Example:
        >>> host_of("https://S3.Example:443/bucket/key"), host_of("http://127.1:9000/bucket")
        ({'Host': 's3.example'}, {'Host': '127.1:9000'})
    """
    parts = urlsplit(url)
    name = (parts.hostname or "").rstrip(".")  # the dot at the end of a name is for the resolver
    host = f"[{name}]" if ":" in name else name
    is_usual = parts.port in (None, {"http": 80, "https": 443}.get(parts.scheme))
    return {"Host": host if is_usual else f"{host}:{parts.port}"} if host and host.isascii() else {}


@contextmanager
def signed_at_offset(offset_s: float) -> Iterator[None]:
    """Make signatures of this thread at a time `offset_s` ahead of this machine's clock."""
    token = _offset_s.set(offset_s)
    try:
        yield
    finally:
        _offset_s.reset(token)


def sign_at_offset(client: Any) -> None:
    """Make a client of botocore obey `signed_at_offset`."""
    signer = request_signer(client)
    plain = signer.get_auth_instance

    def get_auth_instance(*names: Any, **arguments: Any) -> Any:
        auth = plain(*names, **arguments)
        if _offset_s.get():
            change_before_signing(auth, partial(_shift, _offset_s.get()))
        return auth

    signer.get_auth_instance = get_auth_instance


def _shift(offset_s: float, request: Any) -> None:
    """Change the time that SigV4 has just set in a request; no other signature that S3 accepts has a time."""
    time = datetime.strptime(request.context["timestamp"], _TIMESTAMP)
    request.context["timestamp"] = (time + timedelta(seconds=offset_s)).strftime(_TIMESTAMP)


class UrlTemplate:
    """Signs GETs of objects of one bucket."""

    def __init__(self, url: str, key: str, secret_key: str) -> None:
        parts = urlsplit(url)
        self._address, _, query = url.partition("?")
        self._address = self._address.removesuffix(key)
        self._query = query.partition(_SIGNATURE)[0]
        self._path, self._host = parts.path.removesuffix(key), host_of(url).get("Host", parts.netloc)
        self._canonical_query = "&".join(sorted(self._query.split("&")))
        values = dict(each.partition("=")[::2] for each in self._query.split("&"))
        scope = "/".join(unquote(values.get("X-Amz-Credential", "")).split("/")[-4:])  # day, region, service, purpose
        self._before_digest = "\n".join((_ALGORITHM, values.get("X-Amz-Date", ""), scope, ""))
        self._signing_key = f"AWS4{secret_key}".encode()
        for part in scope.split("/"):
            self._signing_key = hmac.digest(self._signing_key, part.encode(), "sha256")
        self._created_at = time.monotonic()

    @classmethod
    def of(cls, url: str, key: str, secret_key: str) -> UrlTemplate | None:
        """Make the template of a URL; None if it does not reproduce this URL, as for other kinds of signatures."""
        if not PLAIN_KEY.fullmatch(key):
            return None
        template = cls(url, key, secret_key)
        return template if template.url(key) == url else None

    def url(self, key: str) -> str | None:
        """Sign a GET of another object; None if botocore has to sign, because of the key or the time."""
        if time.monotonic() > self._created_at + LIFETIME_S or not PLAIN_KEY.fullmatch(key):
            return None
        request = f"GET\n{self._path}{key}\n{self._canonical_query}\nhost:{self._host}\n\nhost\nUNSIGNED-PAYLOAD"
        to_sign = self._before_digest + hashlib.sha256(request.encode()).hexdigest()
        signature = hmac.digest(self._signing_key, to_sign.encode(), "sha256").hex()
        return f"{self._address}{key}?{self._query}{_SIGNATURE}{signature}"


def hold_to_region(client: Any) -> None:
    """Make a client of botocore sign URLs for the region of their bucket; may be called repeatedly."""
    events = client.meta.events  # a handler with the same id is registered only once
    events.register_last("before-endpoint-resolution.s3", _note_region, unique_id=f"{_ID}-region")
    for name in _SIGNED:
        events.register(f"before-parameter-build.s3.{name}", _prefer_region, unique_id=f"{_ID}-endpoint-{name}")
        events.register(f"before-sign.s3.{name}", _sign_for_region, unique_id=f"{_ID}-signature-{name}")
    events.register("before-sign.s3", sign_for_host, unique_id=f"{_ID}-host")


def sign_for_host(request: Any, **_: Any) -> None:
    """Sign for the host that the engine sends: without a dot at its end."""
    if (urlsplit(request.url).hostname or "").endswith("."):
        request.headers["Host"] = host_of(request.url).get("Host", "")


def presigned_get(client: Any, lifetime_s: int, **parameters: Any) -> str:
    """Sign a GET of an object."""
    return presigned(client, "get_object", lifetime_s, parameters)


def presigned(client: Any, method: str, lifetime_s: int, parameters: Mapping[str, Any]) -> str:
    """Sign a request that is named as a method of botocore's client, ``get_object`` or ``upload_part``."""
    url: str = client.generate_presigned_url(method, Params=parameters, ExpiresIn=lifetime_s)
    return url


def template_of(client: Any, url: str, key: str) -> UrlTemplate | None:
    """Make a template of a URL that the client has just signed; None if it cannot sign other URLs."""
    auth = request_signer(client).get_auth_instance(
        signing_name="s3", region_name=client.meta.region_name, signature_version="s3v4-query"
    )
    keys = getattr(auth, "credentials", None)  # current keys; there is no template if the URL has others
    return None if keys is None else UrlTemplate.of(url, key, keys.secret_key)


def _prefer_region(context: MutableMapping[str, Any], **_: Any) -> None:
    if context.get("is_presign_request"):
        context["use_global_endpoint"] = False


def _note_region(builtins: Mapping[str, Any], context: MutableMapping[str, Any], **_: Any) -> None:
    region = builtins["AWS::Region"]
    context[_REGION] = _GLOBAL.get(region, region)


def _sign_for_region(request: Any, **_: Any) -> None:
    """Set the region of the signature, unless botocore has set it from the ARN of an access point."""
    context = request.context
    if context.get("is_presign_request"):
        context.setdefault("signing", {}).setdefault("region", context[_REGION])
