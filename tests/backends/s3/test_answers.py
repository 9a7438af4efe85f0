"""What S3 says of an object's checksum, of the whole and of its parts."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from each_row import each_row

from streamer import _native
from streamer.backends.s3.checksums import Composite, digest_in_head, digest_of_parts
from streamer.backends.s3.errors import LoginError, error_code, storage_error
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    HttpStatusError,
    ObjectNotFoundError,
    OptionError,
    RedirectError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
    UsageError,
)
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest

CRC32C = "4waSgw=="  # of "123456789"
SHA256 = base64.b64encode(bytes(32)).decode()
ETAG_OF_PARTS = '"9b2cf535f27731c974343645a3985328-6"'


@each_row(
    ("answer", "algorithm"),
    [
        ({"ChecksumCRC32C": CRC32C}, "crc32c"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "FULL_OBJECT"}, "crc32c"),
        ({"ChecksumCRC32": "y/Q5Jg=="}, "crc32"),
        ({"ChecksumCRC64NVME": "rosUhgp5mIg=", "ChecksumSHA1": "unused"}, "crc64nvme"),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode()}, "sha256"),
        ({"ChecksumSHA1": base64.b64encode(bytes(20)).decode()}, "sha1"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "FULL_OBJECT", "ETag": ETAG_OF_PARTS}, "crc32c"),
        ({"ChecksumCRC64NVME": "rosUhgp5mIg=", "ETag": ETAG_OF_PARTS}, "crc64nvme"),
        ({"ChecksumCRC32C": CRC32C, "ETag": '"9b2cf535f27731c974343645a3985328"'}, "crc32c"),
    ],
)
def test_a_checksum_of_the_whole(answer: dict[str, str], algorithm: str) -> None:
    digest = digest_in_head(answer, 9)
    assert isinstance(digest, ObjectDigest)
    assert (digest.algorithm, [part.end for part in digest.parts]) == (algorithm, [9])


@each_row(
    ("answer", "reason"),
    [
        ({}, "without a checksum"),
        ({"ChecksumCRC32C": "!"}, "malformed"),
        ({"ChecksumCRC32C": f"{CRC32C}-x"}, "malformed"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "COMPOSITE"}, "malformed"),
        ({"ChecksumSHA256": "AAAA-3"}, "a checksum of the parts"),
        ({"ChecksumCRC32C": CRC32C, "ETag": ETAG_OF_PARTS}, "6 parts, and its crc32c may be of these"),
        ({"ChecksumSHA256": SHA256, "ETag": ETAG_OF_PARTS}, "6 parts, and its sha256 may be of these"),
        ({"ChecksumSHA256": SHA256, "ChecksumType": "FULL_OBJECT", "ETag": ETAG_OF_PARTS}, "may be of these"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "PARTIAL"}, "of a kind that is not known"),
        ({"ChecksumCRC32C": f"{CRC32C}-5", "ETag": ETAG_OF_PARTS}, "is of 5 parts, and its ETag of 6"),
    ],
)
def test_the_reason_for_a_missing_checksum_is_reported(answer: dict[str, str], reason: str) -> None:
    digest = digest_in_head(answer, 9)
    assert isinstance(digest, NoDigest)
    assert reason in digest.reason


def composite() -> Composite:
    found = digest_in_head({"ChecksumCRC32C": f"{CRC32C}-2"}, 18)
    assert isinstance(found, Composite)
    return found


def part(size: int, value: str | None = CRC32C) -> dict[str, Any]:
    return {"Size": size, "ChecksumCRC32C": value}


def test_parts_with_their_sizes_are_digests() -> None:
    digest = digest_of_parts(composite(), [part(9), part(9)], 18)
    assert digest == ObjectDigest("crc32c", (PartDigest(9, "e3069283"), PartDigest(18, "e3069283")))
    assert _native.crc("crc32c", b"123456789") == 0xE3069283


@each_row(
    "parts",
    [
        [],
        [part(9)],
        [part(9), part(8)],
        [part(9), part(9), part(9)],
        [part(18)],
        [part(9), part(9, None)],
        [part(9), part(9, "!")],
        [part(9), part(0), part(9)],
    ],
)
def test_parts_that_do_not_cover_the_object_are_none(parts: list[dict[str, Any]]) -> None:
    assert isinstance(digest_of_parts(composite(), parts, 18), NoDigest)


# --- every answer of S3 and every exception of botocore has one class here, and takes no secret with it -------------


def answer(status: int, code: str, *, region: str | None = None, header: str | None = None) -> ClientError:
    error = {"Code": code, "Message": "CANARY", **({"Region": region} if region else {})}
    headers = {"x-amz-bucket-region": header} if header else {}
    metadata = {"HTTPStatusCode": status, "RequestId": "REQ1", "RetryAttempts": 2, "HTTPHeaders": headers}
    return ClientError({"Error": error, "ResponseMetadata": metadata}, "GetObject")


@each_row(
    ("status", "code", "cls"),
    [
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "NoSuchBucket", ObjectNotFoundError),
        (404, "NoSuchVersion", ObjectNotFoundError),
        (404, "404", ObjectNotFoundError),
        (403, "AccessDenied", AccessDeniedError),
        (403, "AllAccessDisabled", AccessDeniedError),
        (403, "InvalidObjectState", AccessDeniedError),
        (403, "403", AccessDeniedError),
        (403, "InvalidAccessKeyId", CredentialsError),
        (403, "SignatureDoesNotMatch", CredentialsError),
        (403, "RequestTimeTooSkewed", CredentialsError),
        (400, "ExpiredToken", CredentialsError),
        (400, "InvalidToken", CredentialsError),
        (400, "AuthorizationHeaderMalformed", CredentialsError),
        (301, "PermanentRedirect", RedirectError),
        (307, "TemporaryRedirect", RedirectError),
        (400, "IllegalLocationConstraintException", RedirectError),
        (301, "301", RedirectError),
        (400, "400", HttpStatusError),
        (429, "TooManyRequests", HttpStatusError),
        (503, "SlowDown", HttpStatusError),
        (500, "InternalError", HttpStatusError),
    ],
)
def test_an_answer_of_s3_has_a_class_and_its_facts(status: int, code: str, cls: type[StorageError]) -> None:
    reported = storage_error(answer(status, code), "s3://bucket/key", "bucket")
    assert isinstance(reported, StorageError)
    assert type(reported) is cls
    assert (reported.status, reported.code, reported.request_id) == (status, None if code.isdigit() else code, "REQ1")
    assert (reported.uri, reported.attempts) == ("s3://bucket/key", 3)
    assert "CANARY" not in str(reported)


@pytest.mark.parametrize(
    "error",
    [
        answer(400, "AuthorizationHeaderMalformed", region="eu-west-1"),
        answer(301, "PermanentRedirect", header="eu-west-1"),
        answer(301, "301", header="eu-west-1"),
    ],
)
def test_a_bucket_in_another_region_is_named_with_the_option_to_set(error: ClientError) -> None:
    reported = storage_error(error, "s3://bucket/key", "bucket")
    assert isinstance(reported, RedirectError)
    assert "storage_options={'client_kwargs': {'region_name': 'eu-west-1'}}" in str(reported)


def test_a_malformed_region_is_not_repeated() -> None:
    reported = storage_error(answer(301, "301", header="eu-west-1'}} and pay {'"), "s3://bucket/key", "bucket")
    assert "pay" not in str(reported)


def test_the_region_of_an_ordinary_refusal_is_no_redirect() -> None:
    assert isinstance(storage_error(answer(403, "AccessDenied", header="eu-west-1"), "", "bucket"), AccessDeniedError)


@each_row(
    ("error", "cls"),
    [
        (boto.NoCredentialsError(), CredentialsError),
        (boto.PartialCredentialsError(provider="env", cred_var="CANARY"), CredentialsError),
        (boto.CredentialRetrievalError(provider="process", error_msg="CANARY"), CredentialsError),
        (boto.ProfileNotFound(profile="p"), CredentialsError),
        (boto.ConfigParseError(path="p", error=UnicodeDecodeError("utf-8", b"", 0, 1, "CANARY")), CredentialsError),
        (boto.UnauthorizedSSOTokenError(), CredentialsError),
        (boto.SSLError(endpoint_url="CANARY", error="e"), TlsError),
        (boto.ConnectTimeoutError(endpoint_url="CANARY"), TransferTimeoutError),
        (boto.ReadTimeoutError(endpoint_url="CANARY"), TransferTimeoutError),
        (boto.ProxyConnectionError(proxy_url="http://user:CANARY@proxy"), ConnectError),
        (boto.EndpointConnectionError(endpoint_url="CANARY"), ConnectError),
        (boto.ConnectionClosedError(endpoint_url="CANARY"), ConnectError),
        (boto.HTTPClientError(error="CANARY"), ConnectError),
        (boto.ParamValidationError(report="CANARY"), UsageError),
        (boto.NoRegionError(), OptionError),
        (ValueError("Invalid endpoint: CANARY"), OptionError),
        (TypeError("CANARY"), OptionError),
        (boto.BotoCoreError(), StorageError),
        (RuntimeError("CANARY"), StorageError),
    ],
)
def test_an_exception_of_botocore_has_a_class(error: Exception, cls: type[StreamerError]) -> None:
    reported = storage_error(error, "s3://bucket/key", "bucket")
    assert type(reported) is cls
    assert reported.uri == "s3://bucket/key"
    assert "CANARY" not in str(reported)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (answer(404, "NoSuchKey"), "NoSuchKey"),
        (answer(404, "404"), None),
        (ClientError({}, "HeadObject"), None),
        (ValueError(), None),
    ],
)
def test_the_answer_to_a_head_has_no_code_of_its_own(error: Any, code: str | None) -> None:
    assert error_code(error) == code


@each_row(
    ("cause", "cls", "words"),
    [
        (ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole"), CredentialsError, "role or identity"),
        (ValueError("no JSON of a process"), CredentialsError, "could not be fetched"),
        (FileNotFoundError("the process"), CredentialsError, "could not be fetched"),
        (RuntimeError("they are expired"), CredentialsError, "could not be fetched"),
        (KeyError("AssumeRoleResult"), CredentialsError, "could not be fetched"),
        (boto.ProfileNotFound(profile="p"), CredentialsError, "no such profile"),
        (boto.EndpointConnectionError(endpoint_url="https://sts"), ConnectError, "gives credentials"),
    ],
)
def test_what_fails_while_keys_are_fetched_is_about_the_keys_regression(cause, cls, words):
    """A role that may not be assumed was reported as a refusal of the bucket, a broken process as wrong options."""
    error = LoginError()
    error.__cause__ = cause
    reported = storage_error(error, "s3://bucket/key", "bucket")
    assert type(reported) is cls
    assert words in reported.message
