"""Translates errors of Google Cloud Storage and exceptions of google-auth and gcsfs into this package's errors.

Guarantees: an error has the status, code, request id and attempts if there are any. No text of the server, of
google-auth or of the user's options enters a message, so no secret enters one. Answers of a token server are not
chained either: google-auth puts the whole answer into its exception.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from google.auth import exceptions as google

from streamer.backends.client.answer_values import FOREIGN, described, parse_document, parse_word
from streamer.backends.client.error_rows import ErrorRow, ExceptionTable, row_for, row_of_status
from streamer.backends.client.exchange import Response
from streamer.backends.client.retry import Attempts, demanded_pause_s
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
)
from streamer.core.outages.transient import asks_for_another_attempt

HOW_TO_LOG_IN = (
    "Set GOOGLE_APPLICATION_CREDENTIALS to a key file, run `gcloud auth application-default login`, or give "
    "storage_options={'token': …}; for a public bucket {'token': 'anon'}"
)
HOW_TO_TRUST = "For a private CA: SSL_CERT_FILE=/path/ca.pem"
_TOKEN_FILE = re.compile(r"(?:^File|from JSON file) '([^']+)'")  # as google-auth names it
_CODE = re.compile(r"[A-Za-z][A-Za-z_-]{0,60}")

_EXCEPTIONS: ExceptionTable[StreamerError] = {
    (google.DefaultCredentialsError,): ErrorRow(
        CredentialsError, "Google's default credentials cannot be used", HOW_TO_LOG_IN
    ),
    (google.RefreshError, google.ReauthFailError): ErrorRow(
        CredentialsError,
        "The access token has expired and could not be renewed",
        "Log in again, or give credentials that renew themselves: a key file, or Google's default credentials",
    ),
    (google.TransportError,): ErrorRow(
        ConnectError,
        "The server that gives access tokens cannot be reached",
        "Check the network, HTTPS_PROXY and the token_uri of the credentials",
    ),
    (google.GoogleAuthError,): ErrorRow(CredentialsError, "The Google credentials cannot be used", HOW_TO_LOG_IN),
    (TypeError, ValueError, KeyError): ErrorRow(
        OptionError,
        "gcsfs refuses the storage options",
        "See the cause, and first check token, project and session_kwargs",
    ),
}

_REFUSED: ErrorRow[StreamerError] = ErrorRow(
    CredentialsError,
    "Google gives no access token for these credentials",
    "Check that the key or login is still valid, and this machine's clock",
)


@dataclass(frozen=True)
class Answer:
    """The last answer of the JSON API to a request."""

    status: int  # HTTP status
    # The JSON object of the body, or None if the body is none.
    document: Mapping[str, Any] | None = field(default=None, repr=False)
    request_id: str | None = field(default=None, repr=False)  # Google's id of the request, which may repeat a secret
    attempts: int = 1  # number of attempts
    elapsed_s: float = 0.0  # seconds that all attempts took
    retry_after_s: float = 0.0  # pause in seconds that the answer demands before the next request, or 0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # headers by their names in lower case

    @classmethod
    def of(cls, response: Response, attempts: Attempts | None = None) -> Answer:
        """Make the answer from a response whose body was read."""
        return cls(
            response.status,
            _document(response.body),
            parse_word(response.headers.get("x-guploader-uploadid")),
            attempts.number if attempts else 1,
            attempts.elapsed_s if attempts else 0.0,
            demanded_pause_s(response.status, response.headers),
            response.headers,
        )

    @property
    def reason(self) -> str | None:
        """Google's name of the error, such as ``forbidden``."""
        try:
            reason = (self.document or {})["error"]["errors"][0]["reason"]
        except (KeyError, IndexError, TypeError):
            return None
        return reason if isinstance(reason, str) and _CODE.fullmatch(reason) else None


@dataclass(frozen=True)
class Caller:
    """Facts about the sender of a request that explain a refusal."""

    why_anonymous: str | None  # see `GoogleLogin`; None with credentials
    user_project: str | None  # the project to be billed, or None


def raise_storage_error(error: Exception, uri: str | None = None) -> NoReturn:
    """Raise an exception of google-auth or gcsfs as one of this package."""
    if isinstance(error, StreamerError):
        error.uri = error.uri or uri
        raise error
    raise _translated(error, uri) from (None if _may_repeat_a_secret(error) else error)


def refusal(answer: Answer, caller: Caller, uri: str) -> StorageError:
    """Return the error for an unsuccessful answer; after a 404, the store finds out which part is missing."""
    is_unpaid = answer.status == 400 and answer.reason == "required"
    return _meaning(answer, caller).error(
        uri,
        status=answer.status,
        code="UserProjectMissing" if is_unpaid else answer.reason,  # the name in the XML API is clearer than "required"
        request_id=answer.request_id,
        attempts=answer.attempts,
        elapsed_s=answer.elapsed_s,
        retry_after_s=answer.retry_after_s,
    )


def _translated(error: Exception, uri: str | None) -> StreamerError:
    if isinstance(error, google.TransportError) and error.args and _is_of_tls(error.args[0]):
        return TlsError("The TLS handshake with the server that gives access tokens failed", uri=uri, hint=HOW_TO_TRUST)
    if isinstance(error, google.RefreshError) and (failed := _failed_source(error, uri)) is not None:
        return failed
    row = row_for(error, _EXCEPTIONS) if (code := _code_of_token_server(error)) is None else _REFUSED
    if row is None:
        return StorageError(f"The GCS client failed with {type(error).__name__}", uri=uri, hint="Its cause says more")
    return row.error(uri, code=code)


def _failed_source(error: google.RefreshError, uri: str | None) -> CredentialsError | None:
    """Make the error for a token's file that cannot be read now, or a server that may answer later; None for others."""
    token_file = _TOKEN_FILE.search(str(error.args[0] if error.args else ""))
    if token_file is None and not getattr(error, "retryable", False):
        return None
    what = f"the file '{token_file[1]}' cannot be read" if token_file else "the server that gives it failed"
    hint = "Check credential_source in the file of the credentials, and what writes the token"
    failed = CredentialsError(f"The access token could not be renewed: {what}", uri=uri, hint=hint)
    failed.may_come = True
    return failed


def _is_of_tls(reason: object) -> bool:
    from requests.exceptions import SSLError  # noqa: PLC0415  the request has imported it

    return isinstance(reason, SSLError)


def _may_repeat_a_secret(error: Exception) -> bool:
    # Only these two classes are harmless: their subclasses quote key files.
    is_harmless = type(error) in (google.TransportError, google.DefaultCredentialsError)
    return isinstance(error, google.GoogleAuthError) and not is_harmless


def _code_of_token_server(error: Exception) -> str | None:
    """Return the error code of RFC 6749, such as ``invalid_grant``."""
    answer = error.args[1] if isinstance(error, google.RefreshError) and len(error.args) > 1 else None
    code = answer.get("error") if isinstance(answer, Mapping) else None
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def _meaning(answer: Answer, caller: Caller) -> ErrorRow[StorageError]:
    if asks_for_another_attempt(answer.status, answer.reason):
        return row_of_status(answer.status, "Google Cloud Storage could not answer", answer.reason)
    if answer.status in (401, 403):
        return _denial(answer.status, caller)
    if answer.status == 400:
        return _bad_request(answer, caller)
    if answer.status == 404:
        return ErrorRow(ObjectNotFoundError, "There is no such object or bucket", "Check both names")
    if 300 <= answer.status < 400:
        return ErrorRow(
            RedirectError,
            "The endpoint redirects, which a request with credentials must not follow",
            "Check endpoint_url",
        )
    if 200 <= answer.status < 300:
        message = f"The answer is not from Google Cloud Storage's JSON API: {described(answer.headers)}"
        return ErrorRow(StorageError, message, f"{FOREIGN}: check endpoint_url")
    return row_of_status(answer.status, "Google Cloud Storage could not answer")


def _denial(status: int, caller: Caller) -> ErrorRow[StorageError]:
    if caller.why_anonymous == "none found":
        return ErrorRow(
            CredentialsError, "No Google credentials were found, and the bucket is not public", HOW_TO_LOG_IN
        )
    if caller.why_anonymous == "emulator":
        message = "STORAGE_EMULATOR_HOST is set, so no credentials were looked for, and the bucket is not public"
        return ErrorRow(CredentialsError, message, "Give storage_options={'token': …}, or unset STORAGE_EMULATOR_HOST")
    if caller.why_anonymous is not None:
        hint = "Leave out token='anon' to use Google's default credentials, or give others: token='/path/key.json'"
        return ErrorRow(AccessDeniedError, "The bucket is not public", hint)
    if status == 401:
        message = "Google Cloud Storage does not accept the access token: it is wrong, or has expired"
        return ErrorRow(
            CredentialsError, message, "Log in again, or give other credentials: storage_options={'token': …}"
        )
    grant = "Grant storage.objects.get and storage.objects.list (roles/storage.objectViewer), or check the name"
    billed = f"; also serviceusage.services.use on the project {caller.user_project!r}" if caller.user_project else ""
    return ErrorRow(AccessDeniedError, "These credentials may not read the object or bucket", grant + billed)


def _bad_request(answer: Answer, caller: Caller) -> ErrorRow[StorageError]:
    if caller.user_project:
        message = f"The project to be billed, {caller.user_project!r}, or the bucket's name is not valid"
        return ErrorRow(AccessDeniedError, message, "Check requester_pays and project")
    if answer.reason == "required":
        hint = "Name one of yours: storage_options={'requester_pays': 'my-project'}"
        return ErrorRow(
            AccessDeniedError, "In this bucket the reader pays, and no project to be billed was named", hint
        )
    return ErrorRow(HttpStatusError, "Google Cloud Storage cannot make sense of the request", "Check the bucket's name")


def _document(body: bytes) -> Mapping[str, Any] | None:
    document = parse_document(body)
    return document if isinstance(document, dict) else None


def missing_bucket(answer: Answer, bucket: str, uri: str) -> StorageError:
    """Make the error for an answer 404 about a bucket."""
    return not_found(answer, f"There is no bucket {bucket!r}", uri, "Check its name, endpoint_url and project")


def not_found(answer: Answer, message: str, uri: str, hint: str | None) -> StorageError:
    """Make the error for an answer 404."""
    return ObjectNotFoundError(
        message,
        uri=uri,
        hint=hint,
        status=404,
        code=answer.reason,
        request_id=answer.request_id,
        attempts=answer.attempts,
    )
