"""Signs requests to S3 by Signature Version 4, in headers or in the URL. Pure, but for other kinds of signatures.

botocore's own signers sign by any other kind: the retired Version 2, and 4A, which needs the library awscrt.
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html

S3 refuses a signature whose time is a quarter of an hour off, and checks the expiry of a signed URL by its own clock.
So the caller passes the server's time.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

LONGEST_URL = 4096  # of characters, signature included; many servers and proxies accept lines of 8 KiB
UNSIGNED = "UNSIGNED-PAYLOAD"  # in place of the SHA-256 of a body

_ALGORITHM = "AWS4-HMAC-SHA256"
EXPRESS = "v4-s3express"  # Version 4 with the token of a session for one directory bucket
_VERSION_4 = ("s3v4", "v4", EXPRESS)  # botocore's names


@dataclass(frozen=True)
class Keys:
    """The keys of signatures, under the attribute names that botocore's signers use."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class BucketEndpoint(NamedTuple):
    """Where the objects of a bucket are, and what signatures of their requests name."""

    url: str  # URL of the bucket, without a slash at its end
    region: str  # region of the signature
    service: str = "s3"  # service of the signature
    signature: str = "s3v4"  # kind of the signature, by botocore's name
    path: str = ""  # ``/bucket`` for signatures of Version 2, which name the bucket even if the host does


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


def encoded(query: Mapping[str, str]) -> str:
    """Return a query as S3's signatures need it; a parameter without a value is its name alone."""
    quoted = ((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
    return "&".join(f"{name}={value}" if value else name for name, value in quoted)


class Signer(NamedTuple):
    """Signs requests about the objects of one bucket; without keys, it returns them as they are."""

    place: BucketEndpoint  # place of the bucket
    keys: Keys | None  # keys of the signatures; None for anonymous requests
    offset_s: float = 0.0  # how far the server's clock is ahead of this machine's

    def headers(self, method: str, url: str, headers: Mapping[str, str], payload: str) -> dict[str, str]:
        """Return the headers of a request, with its signature; `payload` is the SHA-256 of its body, or `UNSIGNED`."""
        if self.keys is None:
            return dict(headers)
        if self.place.signature not in _VERSION_4:
            request = self._signed_by_botocore(method, url, headers)
            return {name: str(value) for name, value in request.headers.items()}
        stamp = self._stamp()
        sent = {**headers, "X-Amz-Date": stamp, "X-Amz-Content-SHA256": payload}
        if self.keys.token is not None:
            sent[self._token_name()] = self.keys.token
        signature = self._signature(stamp, method, url, sent, payload)
        names = _names({**sent, "Host": ""})
        credential = f"{self.keys.access_key}/{self._scope(stamp)}"
        value = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return {**sent, "Authorization": value}

    def url(self, url: str, headers: Mapping[str, str], lifetime_s: int) -> str:
        """Sign the URL of a GET; whoever sends it has to send the headers, too."""
        if self.keys is None:
            return url
        if self.place.signature not in _VERSION_4:
            return str(self._signed_by_botocore("GET", url, headers, lifetime_s).url)
        stamp = self._stamp()
        query = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{self.keys.access_key}/{self._scope(stamp)}",
            "X-Amz-Date": stamp,
            "X-Amz-Expires": str(lifetime_s),
            "X-Amz-SignedHeaders": _names({**headers, "Host": ""}),
            **({} if self.keys.token is None else {self._token_name(): self.keys.token}),
        }
        signed = f"{url}{'&' if '?' in url else '?'}{encoded(query)}"
        return f"{signed}&X-Amz-Signature={self._signature(stamp, 'GET', signed, headers, UNSIGNED)}"

    def _token_name(self) -> str:
        return "X-Amz-S3session-Token" if self.place.signature == EXPRESS else "X-Amz-Security-Token"

    def _stamp(self) -> str:
        return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + self.offset_s))

    def _scope(self, stamp: str) -> str:
        return f"{stamp[:8]}/{self.place.region}/{self.place.service}/aws4_request"

    def _signature(self, stamp: str, method: str, url: str, headers: Mapping[str, str], payload: str) -> str:
        parts, keys = urlsplit(url), self.keys
        signed = {"Host": host_of(url).get("Host", parts.netloc), **headers}
        # Sorted by name: of whole lines, "a-b:" would come before "a:", and "a-b=" before "a=".
        lines = sorted((name.lower(), " ".join(value.split())) for name, value in signed.items())
        pairs = sorted(each.partition("=")[::2] for each in parts.query.split("&") if each)
        query = "&".join(f"{name}={value}" for name, value in pairs)
        headed = "".join(f"{name}:{value}\n" for name, value in lines)
        request = "\n".join((method, parts.path or "/", query, headed, _names(signed), payload))
        scope = self._scope(stamp)
        text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
        key = f"AWS4{keys.secret_key if keys else ''}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        return key.hex()

    def _signed_by_botocore(
        self, method: str, url: str, headers: Mapping[str, str], lifetime_s: int | None = None
    ) -> Any:
        from botocore.auth import AUTH_TYPE_MAPS  # noqa: PLC0415 (few servers need another signature)
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
        from botocore.exceptions import UnknownSignatureVersionError  # noqa: PLC0415

        kind = self.place.signature
        signer = AUTH_TYPE_MAPS.get(kind if lifetime_s is None else f"{kind}-query")
        if signer is None:
            raise UnknownSignatureVersionError(signature_version=kind)
        named: dict[str, Any] = {} if lifetime_s is None else {"expires": lifetime_s}
        if signer.REQUIRES_REGION:
            named |= {"service_name": self.place.service, "region_name": self.place.region}
        path = urlsplit(url).path.removeprefix(urlsplit(self.place.url).path)
        request = AWSRequest(method, url, headers={**host_of(url), **headers}, auth_path=self.place.path + path)
        signer(self.keys, **named).add_auth(request)
        return request


def _names(headers: Mapping[str, str]) -> str:
    return ";".join(sorted(map(str.lower, headers)))
