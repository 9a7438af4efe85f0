"""Signed URLs that differ in the object alone: botocore signs the first, and the others follow from it.

botocore takes 0.2 ms to sign a URL, and a millisecond to find the endpoint of its bucket again: a checkpoint of a
thousand shards waits for that as long as for its data. The rule:
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html

Guarantees: a template that would not sign the URL it is made of exactly as botocore did is not made.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from urllib.parse import unquote, urlsplit

__all__ = ["PLAIN_KEY", "UrlTemplate"]

# Keys that are in a URL as they are.
PLAIN_KEY = re.compile(r"(?:(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.~-]+(?:/(?!\Z)|\Z))+", re.ASCII)
# Then the credentials, or what is known of the bucket's region, may be others; and it is how much sooner than its
# lifetime after now a signature ends, as all are of the template's time.
LIFETIME_S = 5.0

_ALGORITHM = "AWS4-HMAC-SHA256"
_SIGNATURE = "&X-Amz-Signature="


class UrlTemplate:
    """Signs GETs of objects of one bucket.

    Args:
        url: What botocore signed; its signature is not used.
        key: Of the object in it.
        secret_key: What it was signed with.
    """

    def __init__(self, url: str, key: str, secret_key: str) -> None:
        parts = urlsplit(url)
        self._address, _, query = url.partition("?")
        self._address = self._address.removesuffix(key)
        self._query = query.partition(_SIGNATURE)[0]
        self._path, self._host = parts.path.removesuffix(key), parts.netloc
        self._canonical_query = "&".join(sorted(self._query.split("&")))
        values = dict(each.partition("=")[::2] for each in self._query.split("&"))
        scope = "/".join(unquote(values.get("X-Amz-Credential", "")).split("/")[-4:])  # day, region, service, purpose
        self._before_digest = "\n".join((_ALGORITHM, values.get("X-Amz-Date", ""), scope, ""))
        self._signing_key = f"AWS4{secret_key}".encode()
        for part in scope.split("/"):
            self._signing_key = hmac.digest(self._signing_key, part.encode(), "sha256")
        self._made_at = time.monotonic()

    @classmethod
    def of(cls, url: str, key: str, secret_key: str) -> UrlTemplate | None:
        """Make the template of a URL; None where it would not give this very URL: signatures are of several kinds."""
        if not PLAIN_KEY.fullmatch(key):
            return None
        template = cls(url, key, secret_key)
        return template if template.url(key) == url else None

    def url(self, key: str) -> str | None:
        """Sign a GET of another object; None where the key or the time needs botocore."""
        if time.monotonic() > self._made_at + LIFETIME_S or not PLAIN_KEY.fullmatch(key):
            return None
        request = f"GET\n{self._path}{key}\n{self._canonical_query}\nhost:{self._host}\n\nhost\nUNSIGNED-PAYLOAD"
        to_sign = self._before_digest + hashlib.sha256(request.encode()).hexdigest()
        signature = hmac.digest(self._signing_key, to_sign.encode(), "sha256").hex()
        return f"{self._address}{key}?{self._query}{_SIGNATURE}{signature}"
