"""Every answer of S3 and every exception of botocore has one class here, and takes no secret with it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from each_row import each_row

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
    told = storage_error(answer(status, code), "s3://bucket/key", "bucket")
    assert isinstance(told, StorageError)
    assert type(told) is cls
    assert (told.status, told.code, told.request_id) == (status, None if code.isdigit() else code, "REQ1")
    assert (told.uri, told.attempts) == ("s3://bucket/key", 3)
    assert "CANARY" not in str(told)


@pytest.mark.parametrize(
    "error",
    [
        answer(400, "AuthorizationHeaderMalformed", region="eu-west-1"),
        answer(301, "PermanentRedirect", header="eu-west-1"),
        answer(301, "301", header="eu-west-1"),
    ],
)
def test_a_bucket_in_another_region_is_named_with_the_option_to_set(error: ClientError) -> None:
    told = storage_error(error, "s3://bucket/key", "bucket")
    assert isinstance(told, RedirectError)
    assert "storage_options={'client_kwargs': {'region_name': 'eu-west-1'}}" in str(told)


def test_a_malformed_region_is_not_repeated() -> None:
    told = storage_error(answer(301, "301", header="eu-west-1'}} and pay {'"), "s3://bucket/key", "bucket")
    assert "pay" not in str(told)


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
    told = storage_error(error, "s3://bucket/key", "bucket")
    assert type(told) is cls
    assert told.uri == "s3://bucket/key"
    assert "CANARY" not in str(told)


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
    """A role that may not be assumed was told as a refusal of the bucket, a broken process as wrong options."""
    error = LoginError()
    error.__cause__ = cause
    told = storage_error(error, "s3://bucket/key", "bucket")
    assert type(told) is cls
    assert words in told.message
