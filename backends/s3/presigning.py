"""URLs that read one object, signed by botocore for the region that the bucket is in.

botocore's own ``generate_presigned_url`` prefers the global endpoint, which redirects, and signs for the region of the
client, which is the wrong one where a redirect taught the client another. Handlers of its public events put both right;
https://docs.aws.amazon.com/boto3/latest/guide/events.html
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from streamer.backends.private_names.botocore import request_signer
from streamer.backends.s3.url_template import UrlTemplate

__all__ = ["hold_to_region", "presigned_get", "template_of"]

_ID = "streamer-presigning"
_REGION = "streamer_region"  # in the context of a request, which all three events share
_GLOBAL = {"aws-global": "us-east-1"}  # no region, but a name for the global endpoint; signed for this one


def hold_to_region(client: Any) -> None:
    """Make a client of botocore sign URLs for the region of their bucket; may be called repeatedly."""
    events = client.meta.events  # handlers of one id are registered once
    events.register("before-parameter-build.s3.GetObject", _prefer_region, unique_id=f"{_ID}-endpoint")
    events.register_last("before-endpoint-resolution.s3", _note_region, unique_id=f"{_ID}-region")
    events.register("before-sign.s3.GetObject", _sign_for_region, unique_id=f"{_ID}-signature")


def presigned_get(client: Any, lifetime_s: int, **parameters: Any) -> str:
    """Sign a GET of an object.

    Args:
        client: Held to regions; it may have learnt the bucket's from a redirect.
        lifetime_s: How long the URL is valid.
        parameters: Of ``GetObject``.
    """
    url: str = client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=lifetime_s)
    return url


def template_of(client: Any, url: str, key: str) -> UrlTemplate | None:
    """Make the template of a URL that the client has just signed; None where others cannot follow from it."""
    auth = request_signer(client).get_auth_instance(
        signing_name="s3", region_name=client.meta.region_name, signature_version="s3v4-query"
    )
    keys = getattr(auth, "credentials", None)  # of this moment: if the URL was signed with others, there is no template
    return None if keys is None else UrlTemplate.of(url, key, keys.secret_key)


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
