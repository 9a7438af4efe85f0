"""Translates errors of the Hugging Face Hub into this package's errors, by its ``X-Error-Code``.

Guarantees: an error has the status, code and request id; no text of the Hub, and no token, enters a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamer.backends.client.error_rows import ARCHIVED_ROWS, ErrorRow
from streamer.backends.http import errors as http_errors
from streamer.core.errors import AccessDeniedError, CredentialsError, HttpStatusError, ObjectNotFoundError, StorageError

__all__ = ["refusal"]

_LOGIN = "HF_TOKEN, or storage_options={'token': …}"

_CHECK_NAME = "Check the names: hf://owner/name@revision/path"
_CODES: dict[str, ErrorRow[StorageError]] = {
    "GatedRepo": ErrorRow(
        AccessDeniedError,
        "The repository is gated: its owner asks for consent to its terms",
        f"Accept the terms on its page at the Hub, and set {_LOGIN}, with a token that may read gated repositories",
    ),
    "RepoNotFound": ErrorRow(
        ObjectNotFoundError,
        "There is no such repository on the Hub, or it is private",
        f"Check its name; a private one needs {_LOGIN}",
    ),
    "RevisionNotFound": ErrorRow(ObjectNotFoundError, "The repository has no such branch, tag or commit", _CHECK_NAME),
    "EntryNotFound": ErrorRow(
        ObjectNotFoundError, "The repository has no such file or folder in this revision", _CHECK_NAME
    ),
}

_BAD_TOKEN = ErrorRow(CredentialsError, "The Hub does not accept this token", f"Check {_LOGIN}, or run `hf auth login`")
_STATUSES: dict[int, ErrorRow[StorageError]] = {
    403: ErrorRow(AccessDeniedError, "The Hub refuses access", "Check what the token may read"),
    429: ErrorRow(HttpStatusError, "The Hub wants fewer requests", f"Wait a few minutes, or set {_LOGIN}"),
}


def refusal(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    uri: str,
    *,
    has_token: bool,
    attempts: int = 1,
    elapsed_s: float = 0.0,
) -> StorageError:
    """Return the error for an unsuccessful answer of the Hub, or of a store behind it.

    Args:
        status: Status of the answer.
        headers: Headers of the answer, by names in lower case.
        body: The start of the answer's body.
        uri: URL of the request.
        has_token: A token was sent.
        attempts: Number of attempts.
        elapsed_s: Seconds that all attempts took.
    """
    of_http = http_errors.refusal(status, headers, body, uri, attempts=attempts, elapsed_s=elapsed_s)
    code = headers.get("x-error-code", "")
    row = _CODES.get(code)
    if row is None and status == 401:
        # Without a token the Hub answers the same for private and absent repositories.
        row = _BAD_TOKEN if has_token else _CODES["RepoNotFound"]
    if row is None and headers.get("x-error-message") == "Access to this resource is disabled.":
        row = ErrorRow(AccessDeniedError, "The Hub has disabled the repository", "Its page on the Hub says why")
    row = row or ARCHIVED_ROWS.get(of_http.code or "") or _STATUSES.get(status)
    if row is None:
        return of_http
    return row.error(
        uri,
        status=status,
        code=code if code in _CODES else of_http.code,
        request_id=of_http.request_id,
        attempts=attempts,
        elapsed_s=elapsed_s,
    )
