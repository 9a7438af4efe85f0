"""Signs URLs that read one object or write a part of one, by botocore, for the region of the bucket.

botocore's own ``generate_presigned_url`` prefers the global endpoint, which redirects. It signs for the region of the
client, which is wrong if a redirect named another region. Handlers of botocore's public events correct both.
https://docs.aws.amazon.com/boto3/latest/guide/events.html
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from streamer.backends.private_names.botocore import request_signer
from streamer.backends.s3.url_template import UrlTemplate

__all__ = ["hold_to_region", "presigned", "presigned_get", "template_of"]

_ID = "streamer-presigning"
_SIGNED = ("GetObject", "UploadPart")
_REGION = "streamer_region"  # in the context of a request, which all three events share
_GLOBAL = {"aws-global": "us-east-1"}  # a name of the global endpoint, and the region that its signatures name


def hold_to_region(client: Any) -> None:
    """Make a client of botocore sign URLs for the region of their bucket; may be called repeatedly."""
    events = client.meta.events  # a handler with the same id is registered only once
    events.register_last("before-endpoint-resolution.s3", _note_region, unique_id=f"{_ID}-region")
    for name in _SIGNED:
        events.register(f"before-parameter-build.s3.{name}", _prefer_region, unique_id=f"{_ID}-endpoint-{name}")
        events.register(f"before-sign.s3.{name}", _sign_for_region, unique_id=f"{_ID}-signature-{name}")


def presigned_get(client: Any, lifetime_s: int, **parameters: Any) -> str:
    """Sign a GET of an object.

    Args:
        client: A client that was passed to `hold_to_region`. If a redirect has told it the bucket's region, it signs
            for that region.
        lifetime_s: Seconds that the URL is valid.
        parameters: Parameters of ``GetObject``.
    """
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
