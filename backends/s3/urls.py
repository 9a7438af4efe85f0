"""URLs of S3: ``s3://bucket/key``, with ``?versionId=…`` to pin the version of one object.

Refuses URLs that seem to hold credentials.
"""

from __future__ import annotations

import re

from streamer.core.errors import UsageError
from streamer.core.secrets.redact import redact

# ARNs that stand in place of a bucket and have slashes: access points (regional, Outposts, Lambda), Outposts buckets.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-access-points.html
_NAME = r"[a-zA-Z0-9-]{1,63}"
_ARN = re.compile(
    r"arn:aws[^/]*?:(?:"
    r"s3:[a-z0-9-]*:[0-9]{12}:accesspoint[:/][^/]+"
    rf"|s3-outposts:[a-z0-9-]+:[0-9]{{12}}:outpost[/:]{_NAME}[/:](?:bucket|accesspoint)[/:]{_NAME}"
    rf"|s3-object-lambda:[a-z0-9-]+:[0-9]{{12}}:accesspoint[/:]{_NAME})(?:/|\Z)"
)


def parse_url(uri: str) -> tuple[str, str, str]:
    """Split a URL into its scheme, ``bucket/key`` without slashes at the end, and the version (empty for none).

    Example:
        >>> parse_url("s3://acme%3Amodels/llama#2/?versionId=7")
        ('s3', 'acme:models/llama#2', '7')
    """
    scheme, _, rest = uri.partition("://")
    path, _, version = rest.partition("?versionId=")
    root = _with_tenant(path.rstrip("/"))
    _check_bucket(root, uri)
    return scheme, root, version


def split_path(path: str) -> tuple[str, str]:
    """Split ``bucket/key``; the bucket may be the ARN of an access point.

    Example:
        >>> split_path("models/llama/a"), split_path("arn:aws:s3:us-west-2:123456789012:accesspoint/mine/a/b")
        (('models', 'llama/a'), ('arn:aws:s3:us-west-2:123456789012:accesspoint/mine', 'a/b'))
    """
    arn = _ARN.match(path)
    if arn is not None:
        return arn[0].removesuffix("/"), path[arn.end() :]
    bucket, _, key = path.partition("/")
    return bucket, key


def _with_tenant(path: str) -> str:
    """Decode a quoted colon in the name of a bucket; no bucket has a per cent sign in its name.

    Example:
        >>> _with_tenant("acme%3Amodels/100%3A1"), _with_tenant("models/a%3Ab")
        ('acme:models/100%3A1', 'models/a%3Ab')
    """
    bucket, slash, key = path.partition("/")
    return bucket.replace("%3A", ":").replace("%3a", ":") + slash + key


def _check_bucket(root: str, uri: str) -> None:
    """Refuse names that botocore would refuse later: its message would repeat a password in the name.

    A secret key may hold a slash, so a colon in the bucket and an ``@`` in the key count as credentials, too.
    """
    bucket, _, key = root.partition("/")
    if not bucket:
        raise UsageError("The URL names no bucket", uri=redact(uri), hint="Expected s3://bucket/key")
    if "@" in bucket or (":" in bucket and "@" in key):
        raise UsageError(
            "An S3 URL holds no credentials",
            uri=redact(uri),
            hint="Give storage_options={'key': …, 'secret': …}, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
