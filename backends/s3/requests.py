"""Makes the requests of S3's API, named and given parameters as botocore's methods are, and parses their answers. Pure.

Only what this backend sends is here: twelve operations, their parameters, and those settings of the user
(``s3_additional_kwargs``) that each operation has by botocore's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from streamer.backends.client.exchange import Response
from streamer.backends.s3.answers import FIELDS, parse_page, parse_result
from streamer.backends.s3.signing import encoded

_OF_ALL = frozenset({"ExpectedBucketOwner", "RequestPayer"})
_OF_KEY = _OF_ALL | {"SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5"}
_OF_REMOVAL = _OF_ALL | {"BypassGovernanceRetention", "MFA"}
_OF_NEW = _OF_KEY | {
    *("ACL", "BucketKeyEnabled", "CacheControl", "ContentDisposition", "ContentLanguage", "ContentType", "Expires"),
    *("GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", "Metadata", "ObjectLockLegalHoldStatus"),
    *("ObjectLockMode", "ObjectLockRetainUntilDate", "SSEKMSEncryptionContext", "SSEKMSKeyId"),
    *("ServerSideEncryption", "StorageClass", "Tagging", "WebsiteRedirectLocation"),
}
# Settings that s3fs adds to each request that has them, and so does this backend. Others are set here for each request
# (a checksum, a condition, a range), or would say something else about the bytes.
OF_REQUESTS = _OF_NEW | _OF_REMOVAL


class _Operation(NamedTuple):
    method: str
    settings: frozenset[str] = _OF_KEY
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


_OPERATIONS = {
    "abort_multipart_upload": _Operation("DELETE", _OF_ALL),
    "complete_multipart_upload": _Operation("POST"),
    "create_multipart_upload": _Operation("POST", _OF_NEW, {"uploads": ""}),
    "delete_object": _Operation("DELETE", _OF_REMOVAL),
    "get_object": _Operation("GET"),
    "get_object_attributes": _Operation("GET", _OF_KEY, {"attributes": ""}, {"x-amz-object-attributes": "ObjectParts"}),
    "head_object": _Operation("HEAD"),
    "list_multipart_uploads": _Operation("GET", _OF_ALL, {"uploads": ""}),
    "list_objects_v2": _Operation("GET", _OF_ALL, {"list-type": "2", "encoding-type": "url"}),
    "list_parts": _Operation("GET"),
    "put_object": _Operation("PUT", _OF_NEW),
    "upload_part": _Operation("PUT"),
}
_DOCUMENTS = {
    "complete_multipart_upload": "CompleteMultipartUploadResult",
    "create_multipart_upload": "InitiateMultipartUploadResult",
    "get_object_attributes": "GetObjectAttributesResponse",
    "list_multipart_uploads": "ListMultipartUploadsResult",
    "list_parts": "ListPartsResult",
}
_QUERY = {
    "ContinuationToken": "continuation-token",
    "Delimiter": "delimiter",
    "PartNumber": "partNumber",
    "PartNumberMarker": "part-number-marker",
    "Prefix": "prefix",
    "UploadId": "uploadId",
    "VersionId": "versionId",
}
_CUSTOMERS = "x-amz-server-side-encryption-customer"
_KMS = "x-amz-server-side-encryption"
CHECKSUM = "x-amz-checksum-crc32c"
_HEADERS = {
    "ACL": "x-amz-acl",
    "BucketKeyEnabled": f"{_KMS}-bucket-key-enabled",
    "BypassGovernanceRetention": "x-amz-bypass-governance-retention",
    "CacheControl": "Cache-Control",
    "ChecksumAlgorithm": "x-amz-checksum-algorithm",
    "ChecksumCRC32C": CHECKSUM,
    "ChecksumMode": "x-amz-checksum-mode",
    "ContentDisposition": "Content-Disposition",
    "ContentLanguage": "Content-Language",
    "ContentType": "Content-Type",
    "ExpectedBucketOwner": "x-amz-expected-bucket-owner",
    "Expires": "Expires",
    "GrantFullControl": "x-amz-grant-full-control",
    "GrantRead": "x-amz-grant-read",
    "GrantReadACP": "x-amz-grant-read-acp",
    "GrantWriteACP": "x-amz-grant-write-acp",
    "IfMatch": "If-Match",
    "IfNoneMatch": "If-None-Match",
    "MFA": "x-amz-mfa",
    "ObjectLockLegalHoldStatus": "x-amz-object-lock-legal-hold",
    "ObjectLockMode": "x-amz-object-lock-mode",
    "ObjectLockRetainUntilDate": "x-amz-object-lock-retain-until-date",
    "PartsAfter": "x-amz-part-number-marker",
    "Range": "Range",
    "RequestPayer": "x-amz-request-payer",
    "SSECustomerAlgorithm": f"{_CUSTOMERS}-algorithm",
    "SSECustomerKey": f"{_CUSTOMERS}-key",
    "SSECustomerKeyMD5": f"{_CUSTOMERS}-key-MD5",
    "SSEKMSEncryptionContext": f"{_KMS}-context",
    "SSEKMSKeyId": f"{_KMS}-aws-kms-key-id",
    "ServerSideEncryption": _KMS,
    "StorageClass": "x-amz-storage-class",
    "Tagging": "x-amz-tagging",
    "WebsiteRedirectLocation": "x-amz-website-redirect-location",
}
_OF_USER = "x-amz-meta-"
_OF_ANSWER = {
    "ContentEncoding": "content-encoding",
    "ContentType": "content-type",
    "ETag": "etag",
    "ChecksumType": "x-amz-checksum-type",
    "VersionId": "x-amz-version-id",
} | {field: f"x-amz-checksum-{algorithm}" for field, algorithm in FIELDS.items()}


class UnsignedRequest(NamedTuple):
    """A request about a bucket, or about an object in it."""

    method: str  # method of HTTP
    path: str  # what follows the bucket in the URL: the key and the query
    headers: Mapping[str, str]  # headers, which a signature has to cover
    body: bytes | memoryview  # body
    is_document: bool  # the body of a successful answer is a document


def request_of(operation: str, parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> UnsignedRequest:
    """Make a request of an operation; its parameters come before the settings of the user."""
    method, has, query, headers = _OPERATIONS[operation]
    named = {name: value for name, value in settings.items() if name in has} | dict(parameters)
    of_user = {**(settings.get("Metadata") or {} if "Metadata" in has else {}), **parameters.get("Metadata", {})}
    query = {**query, **{_QUERY[name]: str(value) for name, value in named.items() if name in _QUERY}}
    headers = {
        **headers,
        **{_HEADERS[name]: _text(value) for name, value in named.items() if name in _HEADERS},
        **{f"{_OF_USER}{name}": value for name, value in of_user.items()},
    }
    body = named.get("Body", b"")
    if "MultipartUpload" in named:
        body = _document_of(named["MultipartUpload"]["Parts"])
    path = f"/{quote(named['Key'], safe='/~')}" if "Key" in named else ""
    is_document = method == "GET" and operation != "get_object"
    return UnsignedRequest(method, f"{path}?{encoded(query)}" if query else path, headers, body, is_document)


def result_of(operation: str, answer: Response) -> dict[str, Any] | None:
    """Return the same as botocore's method, without fields that are not used here; None if no document can be read."""
    if operation == "list_objects_v2":
        return parse_page(answer.body)
    if operation in _DOCUMENTS:
        return parse_result(answer.body, _DOCUMENTS[operation])
    length = answer.headers.get("content-length", "")
    of_length = {"ContentLength": int(length)} if length.isascii() and length.isdigit() else {}
    named = {name: answer.headers.get(header) for name, header in _OF_ANSWER.items()}
    of_user = {name[len(_OF_USER) :]: value for name, value in answer.headers.items() if name.startswith(_OF_USER)}
    return {**of_length, "Metadata": of_user} | {name: value for name, value in named.items() if value}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _document_of(parts: list[dict[str, Any]]) -> bytes:
    from xml.sax.saxutils import escape  # noqa: PLC0415 (a load needs none)

    texts = ("".join(f"<{name}>{escape(str(each[name]))}</{name}>" for name in each) for each in parts)
    listed = "".join(f"<Part>{text}</Part>" for text in texts)
    root = "CompleteMultipartUpload"
    return f'<{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{listed}</{root}>'.encode()
