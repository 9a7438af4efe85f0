"""Translates errors of S3 and exceptions of botocore into this package's errors.

Guarantees: an error has the status, code, request id and attempts if there are any. No text of the server, of botocore
or of the user's options enters a message, so no secret enters one. The caller chains the cause.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from botocore import exceptions as boto

from streamer.backends.client.answer_times import HOW_TO_WAIT
from streamer.backends.client.answer_values import parse_word
from streamer.backends.client.error_rows import (
    ARCHIVED_ROWS,
    TOO_LARGE,
    ErrorRow,
    ExceptionTable,
    refusal_of_proxy,
    row_for,
    row_of_status,
)
from streamer.backends.client.retry import demanded_pause_s
from streamer.backends.s3.answers import ForeignAnswerError
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    OptionError,
    RedirectError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
    UsageError,
)
from streamer.core.outages.transient import asks_for_another_attempt
from streamer.core.quoting import quoted
from streamer.core.secrets.environment import variable

_CHECK_KEY = "Check bucket and key; keys are case-sensitive, and have no slash at the start"
_REDIRECTS = frozenset({"PermanentRedirect", "TemporaryRedirect", "Redirect", "IllegalLocationConstraintException"})
_WEB_PAGE = "The answer is a web page and none of S3's: check endpoint_url, and the proxy on the way to it"
_REGION = re.compile(r"[a-z0-9-]{2,40}")

_FULL: ErrorRow[StorageError] = ErrorRow(
    StorageError, "The storage is full, or its quota is used up", "Remove what is not needed, or get a larger quota"
)

# By S3's codes. https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_CODES: dict[str, ErrorRow[StorageError]] = {
    "NoSuchKey": ErrorRow(ObjectNotFoundError, "There is no object of this name in the bucket", _CHECK_KEY),
    "NoSuchBucket": ErrorRow(
        ObjectNotFoundError, "There is no bucket {bucket!r}", "Check its name, endpoint_url and region"
    ),
    "NoSuchVersion": ErrorRow(ObjectNotFoundError, "The object has no such version", "Check versionId in the URL"),
    "InvalidAccessKeyId": ErrorRow(
        CredentialsError,
        "S3 does not know this access key",
        "Check the key and endpoint_url: another server's key looks the same",
    ),
    "SignatureDoesNotMatch": ErrorRow(
        CredentialsError,
        "The secret key does not belong to the access key",
        "Copy it again, with every slash and plus sign",
    ),
    "AuthorizationHeaderMalformed": ErrorRow(CredentialsError, "The access key or region is malformed", "Check both"),
    "ExpiredToken": ErrorRow(CredentialsError, "The session token has expired", "Get new temporary credentials"),
    "InvalidToken": ErrorRow(CredentialsError, "The session token is not valid", "Get new temporary credentials"),
    "TokenRefreshRequired": ErrorRow(
        CredentialsError, "The session token has expired", "Get new temporary credentials"
    ),
    "RequestTimeTooSkewed": ErrorRow(CredentialsError, "This machine's clock differs from S3's", "Set the clock"),
    **ARCHIVED_ROWS,
    "InvalidPart": ErrorRow(StorageError, "S3 has lost a part of the upload", "Save again"),
    "NoSuchUpload": ErrorRow(
        StorageError,
        "S3 no longer has this upload: it removed it, or another program ended it",
        "Save again; check that no rule of the bucket's lifecycle ends uploads after a short time",
    ),
    "EntityTooLarge": ErrorRow(StorageError, "The object or its part is larger than this server takes", "Save less"),
    "QuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
    "AccessDenied": ErrorRow(
        AccessDeniedError,
        "S3 refuses access to the object or bucket",
        "Grant s3:GetObject and s3:ListBucket, or check the key: without s3:ListBucket an absent object looks the same",
    ),
}

_STATUSES: dict[int, ErrorRow[StorageError]] = {
    401: _CODES["AccessDenied"],
    403: _CODES["AccessDenied"],
    404: ErrorRow(ObjectNotFoundError, "There is no such object or bucket", _CHECK_KEY),
    407: refusal_of_proxy(407),
}

_CONTAINER = "container-role"  # botocore's name of this provider
# Answers of AWS to the token of a web identity that has just been replaced by another one.
_OF_ROTATED_TOKENS = frozenset({"ExpiredTokenException", "IDPCommunicationError", "InvalidIdentityToken"})

_NOT_FETCHED: ErrorRow[CredentialsError] = ErrorRow(
    CredentialsError,
    "The AWS credentials could not be fetched",
    "See the cause, and check what gives them: credential_process, role or single sign-on of the profile, "
    "AWS_CONTAINER_CREDENTIALS_*, AWS_WEB_IDENTITY_TOKEN_FILE",
)
_ROLE_REFUSED: ErrorRow[CredentialsError] = ErrorRow(
    CredentialsError,
    "AWS gives no credentials for this role or identity",
    "Check role_arn, the role's trust policy, and source_profile or the token file",
)
_CLASSES_OF_LOGINS = (CredentialsError, TlsError, ConnectError, TransferTimeoutError)

_EXCEPTIONS: ExceptionTable[StreamerError] = {
    (boto.NoCredentialsError, boto.PartialCredentialsError, boto.NoAuthTokenError): ErrorRow(
        CredentialsError,
        "No complete AWS credentials were found",
        "Set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or storage_options={'anon': True}",
    ),
    (boto.ProfileNotFound,): ErrorRow(
        CredentialsError,
        "The AWS configuration has no such profile",
        "Check the option profile, AWS_PROFILE and ~/.aws/config",
    ),
    (boto.ConfigNotFound, boto.ConfigParseError): ErrorRow(
        CredentialsError,
        "The AWS configuration cannot be read",
        "Check ~/.aws/credentials and ~/.aws/config, or the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE "
        "name: UTF-8 text without a byte order mark, each section and line once",
    ),
    (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError): _NOT_FETCHED,
    # The next rows are for requests for credentials, which botocore sends itself.
    (boto.SSLError,): ErrorRow(
        TlsError,
        "The TLS handshake with the service of AWS that gives credentials failed",
        "For a private CA: client_kwargs={'verify': '/path/ca.pem'}, or AWS_CA_BUNDLE=/path/ca.pem",
    ),
    (boto.ConnectTimeoutError, boto.ReadTimeoutError, TimeoutError): ErrorRow(
        TransferTimeoutError, "S3 did not answer in time", HOW_TO_WAIT
    ),
    (boto.ConnectionError, boto.HTTPClientError): ErrorRow(
        ConnectError, "No connection to the service of AWS that gives credentials", "Check region and network"
    ),
    (boto.ParamValidationError,): ErrorRow(UsageError, "The bucket or key is not valid", "Expected s3://bucket/key"),
    (
        boto.BaseEndpointResolverError,
        boto.InvalidS3AddressingStyleError,
        AttributeError,
        TypeError,
        ValueError,
    ): ErrorRow(
        OptionError,
        "The S3 client cannot be made of these storage options",
        "See the cause, and first check endpoint_url, region_name, client_kwargs and config_kwargs",
    ),
}


class LoginError(Exception):
    """The keys could not be fetched; the cause is the exception of their provider."""


def storage_error(error: Exception, uri: str, bucket: str) -> StreamerError:
    """Translate an exception of botocore."""
    if isinstance(error, StreamerError):  # raised by the engine, or by a late check of options
        error.uri = error.uri or uri
        return error
    if isinstance(error, LoginError):
        return _of_login(error.__cause__, uri)
    if (answer := _answer_in(error)) is not None:
        return _from_answer(answer, uri, bucket)
    if isinstance(error, ForeignAnswerError):
        return error.storage_error(uri)
    row = row_for(error, _EXCEPTIONS)
    if row is None:
        return StorageError(f"The S3 client failed with {type(error).__name__}", uri=uri, hint="Its cause says more")
    return row.error(uri)


def _of_login(cause: BaseException | None, uri: str) -> StreamerError:
    if isinstance(cause, StreamerError):  # of a session that a plug-in passes
        return storage_error(cause, uri, "")
    if isinstance(cause, boto.ClientError):
        refusal = _ROLE_REFUSED.error(uri)
        refusal.may_come = error_code(cause) in _OF_ROTATED_TOKENS
        return refusal
    row = row_for(cause, _EXCEPTIONS) if isinstance(cause, Exception) else None
    if row is not None and row is not _NOT_FETCHED and issubclass(row.cls, _CLASSES_OF_LOGINS):
        return row.error(uri)
    error = _NOT_FETCHED.after(_source_of(cause)).error(uri)
    error.may_come = not isinstance(cause, (boto.SSOError, boto.TokenRetrievalError))  # they need a login by hand
    return error


def _source_of(cause: BaseException | None) -> str:
    """Return which file, program or server failed to give the credentials, as the end of a sentence."""
    if isinstance(cause, OSError) and cause.filename is not None:
        return f": {cause.strerror}: '{cause.filename}'"
    if isinstance(source := getattr(cause, "source", None), str):  # of `aws_sessions`
        return source
    provider = getattr(cause, "kwargs", {}).get("provider")
    if provider != _CONTAINER:
        return f" ({quoted(provider)})" if provider else ""
    parts = urlsplit(variable("AWS_CONTAINER_CREDENTIALS_FULL_URI") or "")
    server = (
        f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "the metadata server of the container"
    )
    token_file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    return f" from {server}" + (f" with the token in '{token_file}'" if token_file else "")


def error_code(error: Exception) -> str | None:
    """Return S3's error code; None if there is none, as in the answer to a HEAD, which has no body."""
    code = _code_in(_answer_in(error) or {})
    return None if not code or code == "Unknown" else code


def _answer_in(error: Exception) -> dict[str, Any] | None:
    """Return the answer in botocore's `ClientError` or our `RefusedError`; None for other exceptions."""
    answer: dict[str, Any] | None = getattr(error, "response", None)
    return answer


def _from_answer(response: dict[str, Any], uri: str, bucket: str) -> StorageError:
    document, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    headers = metadata.get("HTTPHeaders", {})  # the request id is only here if a status of 500 or more has no body
    status: int = metadata.get("HTTPStatusCode", 0)
    code = _code_in(response)
    region = _other_region(document, metadata, status)
    if code in _REDIRECTS or region is not None:
        row = _redirect(region)
    else:
        is_passing = asks_for_another_attempt(status, code)
        known = None if is_passing else _CODES.get(code) or _STATUSES.get(status)
        row = known or row_of_status(status, "S3 could not answer", code)
        if not code and status not in TOO_LARGE and str(headers.get("content-type")).startswith("text/html"):
            row = replace(row, hint=_WEB_PAGE)
    return row.filled(bucket=bucket).error(
        uri,
        status=status or None,
        code=code or None,
        request_id=parse_word(metadata.get("RequestId") or headers.get("x-amz-request-id")),
        attempts=metadata.get("RetryAttempts", 0) + 1,
        retry_after_s=demanded_pause_s(status, headers),
    )


def _code_in(response: dict[str, Any]) -> str:
    """Return the code of an error document; empty if it is a status, has elements, or is no word."""
    code = parse_word(response.get("Error", {}).get("Code")) or ""
    return "" if code.isdigit() else code


def _other_region(document: dict[str, Any], metadata: dict[str, Any], status: int) -> str | None:
    """Return the region of a redirect, empty if it names none; None if the answer is no redirect."""
    is_redirect = status in (301, 302, 303, 307, 308)
    of_header = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") if is_redirect else None
    region = document.get("Region") or of_header
    if region is None:
        return "" if is_redirect else None
    return region if isinstance(region, str) and _REGION.fullmatch(region) else ""


def _redirect(region: str | None) -> ErrorRow[StorageError]:
    if not region:
        return ErrorRow(
            RedirectError, "The bucket is in another region or at another endpoint", "Check region and endpoint_url"
        )
    hint = f"storage_options={{'client_kwargs': {{'region_name': '{region}'}}}}, or AWS_REGION={region}"
    return ErrorRow(RedirectError, f"The bucket is in region {region}", hint)
