"""Translates error statuses of HTTP servers and exceptions of aiohttp into this package's errors.

Guarantees: an error has the status, request id and the storage's error code where there are any; no other text of the
server, of aiohttp or of the user's URL enters a message. Only causes whose text holds no URL are chained.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import aiohttp

from streamer.backends.client.answer_times import HOW_TO_WAIT, TOO_SLOW
from streamer.backends.client.answer_values import parse_word
from streamer.backends.client.bounded_answers import TooSlowError
from streamer.backends.client.error_requests import remove_request
from streamer.backends.client.error_rows import ErrorRow, ExceptionTable, row_for, row_of_status
from streamer.backends.client.not_http import NotHttpError
from streamer.backends.client.proxy import refusal_of_proxy
from streamer.backends.client.tls_mismatch import MAY_BE_TLS, wants_tls
from streamer.backends.client.unreachable import is_unknown_host, unknown_host, where
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    OptionError,
    RangeResponseError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
)

__all__ = ["raise_connection_error", "refusal"]

_REQUEST_IDS = ("x-request-id", "x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-amz-cf-id")
_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9.]{1,60})\s*</Code>")

_LOGIN = "Give storage_options={'auth': (user, password)} or {'headers': {'Authorization': 'Bearer …'}}"

_NAME_IT = (
    "Check the URL. A folder needs an HTML page that links to its files; "
    "otherwise name its index: …/model.safetensors.index.json"
)
_UNKNOWN = "Its cause is not shown, as it may repeat the URL; try the URL with curl"

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

_EXCEPTIONS: ExceptionTable[StreamerError] = {
    (aiohttp.ClientSSLError,): ErrorRow(
        TlsError,
        "The TLS handshake failed",
        "For a private CA: storage_options={'verify': '/path/ca.pem'}, or SSL_CERT_FILE=/path/ca.pem",
    ),
    (aiohttp.ClientProxyConnectionError,): ErrorRow(
        ConnectError, "No connection to the proxy", "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    ),
    (aiohttp.ClientConnectorError,): ErrorRow(
        ConnectError, "No connection to the server", "Check host and port, that the server runs, and the network"
    ),
    (TooSlowError,): ErrorRow(TransferTimeoutError, "The server sends its answer too slowly", TOO_SLOW),
    (asyncio.TimeoutError, TimeoutError): ErrorRow(
        TransferTimeoutError, "The server did not answer in time", HOW_TO_WAIT
    ),
    (aiohttp.InvalidURL,): ErrorRow(OptionError, "The URL cannot be requested", "Check it, and that of the proxy"),
    (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError): ErrorRow(
        ConnectError, "The server broke off the connection", "Check that it runs, and the proxy on the way to it"
    ),
}


def raise_connection_error(error: Exception, uri: str, attempts: int = 1, elapsed_s: float = 0.0) -> NoReturn:
    """Raise an exception of aiohttp as one of this package.

    Args:
        error: The exception.
        uri: URL of the request, without secrets.
        attempts: Number of attempts.
        elapsed_s: Seconds that all attempts took.
    """
    remove_request(error)
    if isinstance(error, NotHttpError):
        raise error.storage_error(uri) from None
    if isinstance(error, aiohttp.ClientHttpProxyError):
        raise refusal_of_proxy(error.status).error(uri, status=error.status, attempts=attempts) from None
    if is_unknown_host(error):
        hint = "Check the host's name in the URL, the endpoint or HTTPS_PROXY"  # aiohttp has one error for all three
        raise unknown_host(error, uri, hint, attempts=attempts, elapsed_s=elapsed_s) from error
    message = f"The HTTP client failed with {type(error).__name__}"
    row = row_for(error, _EXCEPTIONS) or ErrorRow(StorageError, message, _UNKNOWN)
    if isinstance(error, aiohttp.ClientConnectorError) and row.cls is ConnectError:
        row = row.after(where(error))
    if _may_want_tls(error, uri):
        row = replace(row, hint=f"Check that it runs. {MAY_BE_TLS}")
    # Only these name a host and a reason; others may repeat the URL.
    cause = error if isinstance(error, aiohttp.ClientConnectorError) else None
    raise row.error(uri, attempts=attempts, elapsed_s=elapsed_s) from cause


def _may_want_tls(error: Exception, uri: str) -> bool:
    is_cut = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
    return is_cut and uri.startswith("http://") and not isinstance(error, aiohttp.ClientConnectorError)


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, uri: str, *, attempts: int = 1, elapsed_s: float = 0.0
) -> StorageError:
    """Return the error for an answer that is no success.

    Args:
        status: Its status.
        headers: Its headers, in any case.
        body: The start of its body, which may hold an object store's error code.
        uri: URL of the request, without secrets.
        attempts: Number of attempts.
        elapsed_s: Seconds that all attempts took.
    """
    row = _STATUSES.get(status) or row_of_status(status, "The server could not answer")
    if status in (400, 401, 403) and b"expired" in body.lower():
        row = ErrorRow(CredentialsError, "The signed URL or its token has expired", "Get a new one")
    if wants_tls(body):
        row = replace(row, hint=MAY_BE_TLS)
    code = _CODE.search(body)
    lower = {name.lower(): value for name, value in headers.items()}
    request_id = next((lower[name] for name in _REQUEST_IDS if name in lower), "")
    return row.error(
        uri,
        status=status,
        code=code[1].decode() if code else None,
        request_id=parse_word(request_id),
        attempts=attempts,
        elapsed_s=elapsed_s,
    )
