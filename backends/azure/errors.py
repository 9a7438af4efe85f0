"""What went wrong with Azure Blob Storage, told in this package's errors: one table, from Azure's codes and exceptions.

Guarantees: status, code, request id and attempts are carried where Azure gave them; no text of the server enters a
message or a chained exception, because Azure repeats signatures in it. What the network or a login had to say is
chained, unless it may hold a URL.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NoReturn, TypeAlias

import aiohttp
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    IncompleteReadError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)

from streamer.backends.client.answer_times import HOW_TO_WAIT, TOO_SLOW
from streamer.backends.client.answer_values import parse_word
from streamer.backends.client.bounded_answers import TooSlowError
from streamer.backends.client.error_rows import ErrorRow, ExceptionTable, row_for, row_of_status
from streamer.backends.client.not_http import NotHttpError
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    RedirectError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
    UsageError,
)
from streamer.core.outages.transient import STATUSES

__all__ = ["Asked", "LoginFailedError", "about_answer", "is_transient", "raise_login_error", "raise_storage_error"]

_Row: TypeAlias = ErrorRow[StorageError] | ErrorRow[UsageError]

_LOGIN_HINT = (
    "Set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, "
    "log in with `az login` (anon=False), or read a public container with storage_options={'anon': True}"
)
_CHECK_NAMES = "Check account, container and name"
_NEW_SAS = "Get another one"
_NEEDS = "Reading needs r, a folder also l; of roles, Storage Blob Data Reader suffices, Reader does not"
_PRIVATE: _Row = ErrorRow(AccessDeniedError, "The container is not public, and no credentials were given", _LOGIN_HINT)
_REFUSED: _Row = ErrorRow(
    CredentialsError, "Azure does not accept the {means} for account {account!r}", "Check it, and the clock"
)
_NO_CONTAINER: _Row = ErrorRow(
    ObjectNotFoundError, "There is no container {container!r} in account {account!r}", "Check both names"
)

# https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes and …/blob-service-error-codes
_CODES: dict[str, _Row] = {
    "BlobNotFound": ErrorRow(ObjectNotFoundError, "There is no blob of this name in the container", _CHECK_NAMES),
    "ContainerNotFound": _NO_CONTAINER,
    "ContainerBeingDeleted": _NO_CONTAINER,
    "ResourceNotFound": ErrorRow(ObjectNotFoundError, "There is no such blob or container", _CHECK_NAMES),
    "AuthenticationFailed": _REFUSED,
    "InvalidAuthenticationInfo": _REFUSED,
    "NoAuthenticationInformation": _PRIVATE,
    "PublicAccessNotPermitted": ErrorRow(
        AccessDeniedError, "Account {account!r} lets nobody read anonymously", _LOGIN_HINT
    ),
    "KeyBasedAuthenticationNotPermitted": ErrorRow(
        CredentialsError,
        "Account {account!r} accepts no account keys and no SAS made of them",
        "Log in instead: storage_options={'anon': False} or a credential of azure.identity.aio",
    ),
    "AuthorizationPermissionMismatch": ErrorRow(
        AccessDeniedError,
        "The {means} does not give this permission",
        _NEEDS,
    ),
    "AuthorizationResourceTypeMismatch": ErrorRow(
        AccessDeniedError, "The SAS is not for blobs or containers", "An account SAS needs the resource types c and o"
    ),
    "AuthorizationServiceMismatch": ErrorRow(AccessDeniedError, "The SAS is not for the blob service", _NEW_SAS),
    "AuthorizationProtocolMismatch": ErrorRow(
        AccessDeniedError, "The SAS is for HTTPS only", "Check account_host: the connection is not encrypted"
    ),
    "AuthorizationSourceIPMismatch": ErrorRow(AccessDeniedError, "The SAS is for other IP addresses", _NEW_SAS),
    "AuthorizationFailure": ErrorRow(
        AccessDeniedError,
        "Account {account!r} refuses this caller",
        "Check the account's firewall, and that it may be reached from this network",
    ),
    "InsufficientAccountPermissions": ErrorRow(AccessDeniedError, "The {means} does not give this permission", _NEEDS),
    "AccountIsDisabled": ErrorRow(AccessDeniedError, "Account {account!r} is disabled", "Ask the owner of the account"),
    "BlobArchived": ErrorRow(AccessDeniedError, "The blob is archived", "Rehydrate it to the hot or cool tier first"),
    "BlobUsesCustomerSpecifiedEncryption": ErrorRow(
        AccessDeniedError,
        "The blob is encrypted with a key of its own",
        "Such blobs are not read: copy it to one without",
    ),
    "InvalidResourceName": ErrorRow(UsageError, "This cannot be the name of a container or blob", _CHECK_NAMES),
    "InvalidUri": ErrorRow(UsageError, "This cannot be the name of a container or blob", _CHECK_NAMES),
}

_REDIRECTED: _Row = ErrorRow(
    RedirectError,
    "The host redirects to another place, which is shown no credentials",
    "Name the right host in the URL or as account_host",
)
_STATUSES: dict[int, _Row] = {
    **dict.fromkeys((301, 302, 303, 307, 308), _REDIRECTED),
    401: _REFUSED,
    403: _CODES["AuthorizationFailure"],
    404: _CODES["ResourceNotFound"],
}

_NOT_OF_TEXT = (
    asyncio.TimeoutError,
    IncompleteReadError,
    ServiceRequestError,
    ServiceResponseError,
    StreamerError,
)
_TLS_ERRORS = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)

# Of azure-core, and of aiohttp, which is asked first.
_EXCEPTIONS: ExceptionTable[StorageError] = {
    _TLS_ERRORS: ErrorRow(
        TlsError,
        "The TLS handshake with {host} failed",
        "For a private CA: storage_options={'connection_verify': '/path/ca.pem'}, or SSL_CERT_FILE",
    ),
    (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError): ErrorRow(
        ConnectError, "No connection to the proxy", "Check HTTPS_PROXY and NO_PROXY"
    ),
    (TooSlowError,): ErrorRow(TransferTimeoutError, "{host} sends its answer too slowly", TOO_SLOW),
    (asyncio.TimeoutError, ServiceRequestTimeoutError, ServiceResponseTimeoutError): ErrorRow(
        TransferTimeoutError, "{host} did not answer in time", HOW_TO_WAIT
    ),
    (IncompleteReadError,): ErrorRow(
        ConnectError, "{host} broke off its answer", "Check the network, and the proxy on the way to it"
    ),
}


@dataclass(frozen=True)
class Asked:
    """What was asked for, and as whom.

    Attributes:
        uri: It, without secrets.
        container: Its container.
        account: The storage account, or None where the host does not tell.
        host: Where it was asked.
        means: ``"account key"``, ``"SAS"`` or ``"token"``; None for an anonymous caller.
        sas_expires_at_s: Unix time at which the SAS expires, where there is one and it says so.
    """

    uri: str
    container: str
    account: str | None
    host: str
    means: str | None
    sas_expires_at_s: float | None = None


class LoginFailedError(Exception):
    """No token could be got; the cause says why."""


def is_transient(error: Exception) -> bool:
    """Say whether asking again may help."""
    if isinstance(error, IncompleteReadError):
        return True
    if isinstance(error, HttpResponseError):
        return error.response is not None and error.status_code in STATUSES
    reason = _reason(error)
    is_final = isinstance(reason, (*_TLS_ERRORS, NotHttpError)) or _is_unknown_host(reason)
    return isinstance(error, (ServiceRequestError, ServiceResponseError)) and not is_final


def raise_storage_error(error: Exception, asked: Asked, attempts: int = 1, elapsed_s: float = 0.0) -> NoReturn:
    """Translate an exception of azure-storage-blob, or `LoginFailedError`; one of our own passes."""
    tried = {"attempts": attempts, "elapsed_s": elapsed_s}
    if isinstance(error, StorageError):
        error.uri, error.attempts, error.elapsed_s = error.uri or asked.uri, attempts, elapsed_s
        raise error
    if isinstance(error, LoginFailedError):
        raise_login_error(error.__cause__, asked)
    if isinstance(error, (asyncio.TimeoutError, IncompleteReadError)):
        raise _from_network(error, asked, tried) from None
    if isinstance(error, HttpResponseError) and error.response is not None:
        raise _from_answer(error, asked, tried) from None
    if isinstance(error, (ServiceRequestError, ServiceResponseError)):
        raise _from_network(error, asked, tried) from (error if _is_harmless(_reason(error)) else None)
    if isinstance(error, (AzureError, ValueError)):  # signing with a key that is not base64
        hint = "Copy it again; an account key is of base64"
        raise CredentialsError(f"The {asked.means or 'request'} is malformed", uri=asked.uri, hint=hint) from None
    hint = "Its cause is not shown, as it may repeat a SAS; logging of the library azure tells more"
    raise StorageError(f"The Azure client failed with {type(error).__name__}", uri=asked.uri, hint=hint) from None


def about_answer(error: Exception) -> Exception:
    """Name an exception anew that came after an answer, where it is about what that says and not of the network."""
    is_told = isinstance(error, HttpResponseError) and (error.status_code or 0) >= 300
    if is_told or isinstance(error, _NOT_OF_TEXT):
        return error
    return StorageError("Azure's answer is malformed", hint="Check account_host, and the proxy on the way to it")


def raise_login_error(error: BaseException | None, asked: Asked) -> NoReturn:
    """Say why there is no token; azure-identity's own report lists what it tried, and is chained."""
    if isinstance(error, asyncio.TimeoutError):
        raise CredentialsError("Azure gave no token in time", uri=asked.uri, hint=_LOGIN_HINT) from None
    if isinstance(error, (ServiceRequestError, ServiceResponseError)):
        hint = "Check the network and HTTPS_PROXY, or give a key or SAS instead"
        raise ConnectError("No connection to Azure's login service", uri=asked.uri, hint=hint) from error
    if isinstance(error, AzureError):
        raise CredentialsError(
            "No Azure credentials were found, or none works", uri=asked.uri, hint=_LOGIN_HINT
        ) from error
    raise CredentialsError(
        f"The credential object gave no token: {type(error).__name__}",
        uri=asked.uri,
        hint="adlfs needs one of azure.identity.aio",
    ) from None


def _from_answer(error: HttpResponseError, asked: Asked, tried: Mapping[str, float]) -> StorageError | UsageError:
    assert error.response is not None
    headers: Mapping[str, str] = error.response.headers  # type: ignore[attr-defined]
    status = error.status_code or 0
    told = getattr(error, "error_code", None)
    code = parse_word(headers.get("x-ms-error-code") or getattr(told, "value", told))
    row = _row(str(code), status, asked)
    named = row.filled(container=asked.container, account=asked.account, means=asked.means or "anonymous caller")
    request_id = parse_word(headers.get("x-ms-request-id"))
    return named.error(asked.uri, status=status or None, code=code, request_id=request_id, **tried)


def _row(code: str, status: int, asked: Asked) -> _Row:
    if status in (401, 403) and asked.sas_expires_at_s is not None:
        expired_at = datetime.fromtimestamp(asked.sas_expires_at_s, timezone.utc)
        if expired_at <= datetime.now(timezone.utc):
            return ErrorRow(CredentialsError, f"The SAS expired at {expired_at:%Y-%m-%d %H:%M:%S} UTC", "Get a new one")
    row = _CODES.get(code) or _STATUSES.get(status) or row_of_status(status, "Azure could not answer")
    if asked.means is None and row is _REFUSED:
        return _PRIVATE
    if asked.means is None and row is _CODES["ResourceNotFound"]:
        return ErrorRow(ObjectNotFoundError, "There is no such blob or container, or it is not public", _LOGIN_HINT)
    return row


def _from_network(error: Exception, asked: Asked, tried: Mapping[str, float]) -> StorageError:
    reason = error if isinstance(error, asyncio.TimeoutError) else _reason(error)
    if isinstance(reason, NotHttpError):
        return reason.storage_error(asked.uri)
    row = row_for(reason, _EXCEPTIONS) or row_for(error, _EXCEPTIONS) or _unreachable(reason, asked)
    return row.filled(host=asked.host, account=asked.account).error(asked.uri, **tried)


def _unreachable(reason: BaseException | None, asked: Asked) -> ErrorRow[StorageError]:
    if isinstance(reason, aiohttp.ClientConnectorError) and isinstance(reason.os_error, socket.gaierror):
        named = "There is no storage account {account!r}, or its" if asked.account else "Its"
        hint = "Check account_name, and account_host outside the public cloud"
        return ErrorRow(ConnectError, f"{named} host {{host}} is unknown to DNS", hint)
    return ErrorRow(ConnectError, "No connection to {host}", "Check account_name, account_host and the network")


def _reason(error: Exception) -> BaseException | None:
    inner: BaseException | None = getattr(error, "inner_exception", None)
    return inner or error.__cause__


def _is_unknown_host(reason: BaseException | None) -> bool:
    cause = reason.os_error if isinstance(reason, aiohttp.ClientConnectorError) else None
    return isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME


def _is_harmless(reason: BaseException | None) -> bool:
    """Other errors of aiohttp repeat the URL, which may hold a SAS or a proxy's password."""
    return isinstance(reason, (aiohttp.ClientConnectorError, asyncio.TimeoutError, TimeoutError))
