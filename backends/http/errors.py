"""Translates error statuses of HTTP servers into this package's errors.

Guarantees: an error has the status, request id and the storage's error code if there are any; no other text of the
server or of the user's URL enters a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamer.backends.client.answer_values import code_in, parse_word
from streamer.backends.client.error_rows import (
    ARCHIVED_ROWS,
    MAY_BE_TLS,
    ErrorRow,
    refusal_of_proxy,
    row_of_status,
    wants_tls,
)
from streamer.core.errors import (
    AccessDeniedError,
    CredentialsError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
)

_REQUEST_IDS = ("x-request-id", "x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-amz-cf-id")

_LOGIN = "Give storage_options={'auth': (user, password)} or {'headers': {'Authorization': 'Bearer …'}}"

_NAME_IT = (
    "Check the URL. A folder needs an HTML page that links to its files; "
    "otherwise name its index: …/model.safetensors.index.json"
)

_STATUSES: dict[int, ErrorRow[StorageError]] = {
    401: ErrorRow(CredentialsError, "The server wants other credentials", _LOGIN),
    403: ErrorRow(
        AccessDeniedError, "The server refuses access", "Check the credentials, or whether a signed URL has expired"
    ),
    404: ErrorRow(ObjectNotFoundError, "There is no such file", _NAME_IT),
    407: refusal_of_proxy(407),
    410: ErrorRow(ObjectNotFoundError, "The file is gone", _NAME_IT),
    416: ErrorRow(
        RangeResponseError, "The server cannot give the first byte of the file", "Check its size there, or download it"
    ),
}


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, uri: str, *, attempts: int = 1, elapsed_s: float = 0.0
) -> StorageError:
    """Return the error for an unsuccessful answer; `body` is its start."""
    row = _STATUSES.get(status) or row_of_status(status, "The server could not answer")
    if status in (400, 401, 403) and b"expired" in body.lower():
        row = ErrorRow(CredentialsError, "The signed URL or its token has expired", "Get a new one")
    if wants_tls(body):
        row = replace(row, hint=MAY_BE_TLS)
    code = code_in(body)
    row = ARCHIVED_ROWS.get(code or "", row)
    lower = {name.lower(): value for name, value in headers.items()}
    request_id = next((lower[name] for name in _REQUEST_IDS if name in lower), "")
    return row.error(
        uri,
        status=status,
        code=code,
        request_id=parse_word(request_id),
        attempts=attempts,
        elapsed_s=elapsed_s,
    )
