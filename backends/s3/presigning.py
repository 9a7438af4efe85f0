"""URLs that read one object, signed by botocore for the region that the bucket is in.

botocore's own ``generate_presigned_url`` prefers the global endpoint, which redirects, and signs for the region of the
client, which is the wrong one where a redirect taught the client another. Handlers of its public events put both right;
https://docs.aws.amazon.com/boto3/latest/guide/events.html

It also takes a millisecond, most of it to find the endpoint of the bucket again. So one such URL is the template for
others of its bucket: they differ in the key and the signature, which botocore's signer makes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.awsrequest import AWSRequest

from streamer.backends.private_names.botocore import request_signer
from streamer.backends.s3.plain_requests import PLAIN_KEY

__all__ = ["UrlTemplate", "hold_to_region", "presigned_get"]

TEMPLATE_LIFETIME_S = 10.0  # afterwards the credentials or what is known of the bucket's region may be others

_ALGORITHM = "AWS4-HMAC-SHA256"

_ID = "streamer-presigning"
_REGION = "streamer_region"  # in the context of a request, which all three events share
_GLOBAL = {"aws-global": "us-east-1"}  # no region, but a name for the global endpoint; signed for this one


def hold_to_region(client: Any) -> None:
    """Make a client of aiobotocore sign URLs for the region of their bucket; may be called repeatedly."""
    events = client.meta.events  # handlers of one id are registered once
    events.register("before-parameter-build.s3.GetObject", _prefer_region, unique_id=f"{_ID}-endpoint")
    events.register_last("before-endpoint-resolution.s3", _note_region, unique_id=f"{_ID}-region")
    events.register("before-sign.s3.GetObject", _sign_for_region, unique_id=f"{_ID}-signature")


async def presigned_get(client: Any, lifetime_s: int, **parameters: Any) -> str:
    """Sign a GET of an object.

    Args:
        client: Held to regions; it may have learnt the bucket's from a redirect.
        lifetime_s: How long the URL is valid.
        parameters: Of ``GetObject``.
    """
    url: str = await client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=lifetime_s)
    return url


class UrlTemplate:
    """Signs GETs of objects of one bucket as botocore signed that of one of them.

    Args:
        prefix: URL of the bucket, with the slash before a key.
        auth: botocore's signer of URLs, with the credentials and for the region of that URL.
    """

    def __init__(self, prefix: str, auth: Any) -> None:
        self._prefix, self._auth = prefix, auth
        self._made_at = time.monotonic()

    @classmethod
    async def of(cls, client: Any, url: str, key: str, lifetime_s: int) -> UrlTemplate | None:
        """Make the template of a URL.

        Returns:
            None where it would not give this very URL: the signature is of another kind, or a second has passed.
        """
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        prefix = f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix(key)}"
        scope = query.get("X-Amz-Credential", "").split("/")
        if query.get("X-Amz-Algorithm") != _ALGORITHM or len(scope) != 5 or not PLAIN_KEY.fullmatch(key):
            return None
        _, _, region, service, _ = scope
        signer = request_signer(client)
        auth = await signer.get_auth_instance(
            signing_name=service, region_name=region, signature_version="s3v4-query", expires=lifetime_s
        )
        template = cls(prefix, auth)
        return template if template.url(key) == url else None

    def url(self, key: str) -> str | None:
        """Sign a GET of another object; None where the key or the time needs botocore's own way."""
        if time.monotonic() > self._made_at + TEMPLATE_LIFETIME_S or not PLAIN_KEY.fullmatch(key):
            return None
        request = AWSRequest("GET", self._prefix + key)
        self._auth.add_auth(request)
        return str(request.url)


def _prefer_region(context: MutableMapping[str, Any], **_: Any) -> None:
    if context.get("is_presign_request"):
        context["use_global_endpoint"] = False


def _note_region(builtins: Mapping[str, Any], context: MutableMapping[str, Any], **_: Any) -> None:
    region = builtins["AWS::Region"]
    context[_REGION] = _GLOBAL.get(region, region)


def _sign_for_region(request: Any, **_: Any) -> None:
    """Name the region, unless botocore took another from the ARN of an access point."""
    context = request.context
    if context.get("is_presign_request"):
        context.setdefault("signing", {}).setdefault("region", context[_REGION])
