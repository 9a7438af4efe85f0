"""What the Hugging Face Hub had to say, told in this package's errors: one table of its ``X-Error-Code``.

Guarantees: status, code and request id are carried; no text of the Hub, and no token, enters a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamer.backends.http import errors as http_errors
from streamer.core.errors import AccessDeniedError, CredentialsError, HttpStatusError, ObjectNotFoundError, StorageError

__all__ = ["refusal"]

_LOGIN = "HF_TOKEN, or storage_options={'token': …}"

_CODES: dict[str, tuple[type[StorageError], str, str | None]] = {
    "GatedRepo": (
        AccessDeniedError,
        "The repository is gated: its owner asks for consent to its terms",
        f"Accept the terms on its page at the Hub, and set {_LOGIN}, with a token that may read gated repositories",
    ),
    "RepoNotFound": (
        ObjectNotFoundError,
        "There is no such repository on the Hub, or it is private",
        f"Check its name; a private one needs {_LOGIN}",
    ),
    "RevisionNotFound": (ObjectNotFoundError, "The repository has no such branch, tag or commit", None),
    "EntryNotFound": (ObjectNotFoundError, "The repository has no such file or folder in this revision", None),
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
    """Say what an error of the Hub, or of a store behind it, means; arguments as for `http_errors.refusal`.

    Args:
        status: Anything that is no success.
        headers: Of the answer.
        body: The start of its body.
        uri: What was asked for.
        has_token: A token was sent.
        attempts: How often it was asked for.
        elapsed_s: Seconds since the first time.
    """
    told = http_errors.refusal(status, headers, body, uri, attempts=attempts, elapsed_s=elapsed_s)
    code = headers.get("X-Error-Code", "")
    row = _CODES.get(code)
    if row is None and status == 401:
        # What the Hub says to everybody without a token, so that nobody learns which private repositories there are.
        row = _CODES["RepoNotFound"] if not has_token else _bad_token()
    if row is None and headers.get("X-Error-Message") == "Access to this resource is disabled.":
        row = (AccessDeniedError, "The Hub has disabled the repository", None)
    if row is None and status == 403:
        row = (AccessDeniedError, "The Hub refuses access", "Check what the token may read")
    if row is None and status == 429:
        row = (HttpStatusError, "The Hub wants fewer requests", f"Wait a few minutes, or set {_LOGIN}")
    if row is not None:
        cls, message, hint = row
        return cls(
            message,
            uri=uri,
            hint=hint,
            status=status,
            code=code if code in _CODES else told.code,
            request_id=told.request_id,
            attempts=attempts,
            elapsed_s=elapsed_s,
        )
    return told


def _bad_token() -> tuple[type[StorageError], str, str | None]:
    return CredentialsError, "The Hub does not accept this token", f"Check {_LOGIN}, or run `hf auth login`"
