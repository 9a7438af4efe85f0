"""Buckets of other tenants, ``tenant:bucket``, as Ceph and OpenStack name them.

Amazon forbids a colon in the name of a bucket, and botocore applies this rule to every server, before it sends a
request. Guarantees: such a bucket is read if the server is not Amazon's; at Amazon an error says that there is none.
Names with an ``@`` do not reach this module: the store refuses them, because they hold credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from botocore.handlers import validate_bucket_name

from streamer.core.errors import UsageError

__all__ = ["allow_tenants", "check_tenant"]

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_CHECK = "before-parameter-build.s3"


def allow_tenants(client: Any) -> None:
    """Make the client of another server than Amazon's check only the part of a bucket's name after the tenant."""
    if not _is_amazon(client):
        client.meta.events.unregister(_CHECK, validate_bucket_name)
        client.meta.events.register(_CHECK, _validate_name_of_tenants_bucket, unique_id=__name__)


def check_tenant(client: Any, bucket: str) -> None:
    """Refuse the bucket of a tenant at Amazon, before botocore refuses it with a message that repeats the name.

    Raises:
        UsageError: Amazon has no such bucket.
    """
    if ":" in bucket and not bucket.startswith("arn:") and _is_amazon(client):
        raise UsageError(
            "Amazon S3 forbids a colon in the name of a bucket; tenant:bucket is a name of other servers",
            hint="Name that server: storage_options={'endpoint_url': 'https://…'}, or AWS_ENDPOINT_URL",
        )


def _validate_name_of_tenants_bucket(params: Mapping[str, Any], **_: Any) -> None:
    if "Bucket" in params and not params["Bucket"].startswith("arn:"):
        validate_bucket_name({"Bucket": params["Bucket"].rpartition(":")[2]})


def _is_amazon(client: Any) -> bool:
    host = (urlsplit(client.meta.endpoint_url).hostname or "").rstrip(".")
    return f".{host}".endswith(_AMAZON)
