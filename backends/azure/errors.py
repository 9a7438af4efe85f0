"""Translates errors of Azure Blob Storage and exceptions of its libraries into this package's errors.

Guarantees: an error has the status, code, request id and attempts if there are any; no text of the server enters a
message or a chained exception, because Azure repeats signatures in it. Exceptions of logins are chained, unless they
may hold a URL.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NoReturn, TypeAlias

from streamer.backends.client.answer_values import FOREIGN, clock_offset_s, described, parse_word
from streamer.backends.client.error_rows import ARCHIVED_ROWS, ErrorRow, row_of_status
from streamer.backends.client.exchange import Response
from streamer.backends.client.retry import Attempts, demanded_pause_s
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    RedirectError,
    StorageError,
    StreamerError,
    UsageError,
)
from streamer.core.outages.transient import UNKNOWN_HOST, asks_for_another_attempt
from streamer.core.quoting import quoted
from streamer.core.secrets.environment import variable

_Row: TypeAlias = ErrorRow[StorageError] | ErrorRow[UsageError]

_LOGIN_HINT = (
    "Set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, "
    "log in with `az login` (anon=False), or read a public container with storage_options={'anon': True}"
)
_TOKEN_FILE = "AZURE_FEDERATED_TOKEN_FILE"  # noqa: S105 (the name of a variable)
_CHECK_NAMES = "Check account, container and name"
_NEW_SAS = "Get another SAS"
_NEEDS = "Reading needs r, a folder also l; of roles, Storage Blob Data Reader suffices, Reader does not"
_PRIVATE: _Row = ErrorRow(AccessDeniedError, "The container is not public, and no credentials were given", _LOGIN_HINT)
_REFUSED: _Row = ErrorRow(
    CredentialsError, "Azure does not accept the {credential} for account {account!r}", "Check it, and the clock"
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
        AccessDeniedError, "Account {account!r} does not allow anonymous reads", _LOGIN_HINT
    ),
    "KeyBasedAuthenticationNotPermitted": ErrorRow(
        CredentialsError,
        "Account {account!r} accepts neither account keys nor a SAS that an account key signed",
        "Log in instead: storage_options={'anon': False} or a credential of azure.identity.aio",
    ),
    "AuthorizationPermissionMismatch": ErrorRow(
        AccessDeniedError,
        "The {credential} does not give this permission",
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
    "InsufficientAccountPermissions": ErrorRow(
        AccessDeniedError, "The {credential} does not give this permission", _NEEDS
    ),
    "AccountIsDisabled": ErrorRow(AccessDeniedError, "Account {account!r} is disabled", "Ask the owner of the account"),
    **ARCHIVED_ROWS,
    "BlobUsesCustomerSpecifiedEncryption": ErrorRow(
        AccessDeniedError,
        "The blob is encrypted with a key that the uploader provided",
        "Copy it to a blob without such a key: streamer cannot provide the key",
    ),
    "InvalidResourceName": ErrorRow(UsageError, "This cannot be the name of a container or blob", _CHECK_NAMES),
    "InvalidUri": ErrorRow(UsageError, "This cannot be the name of a container or blob", _CHECK_NAMES),
}

_REDIRECTED: _Row = ErrorRow(
    RedirectError,
    "The host redirects to another place, which must not get the credentials",
    "Name the right host in the URL or as account_host",
)
_STATUSES: dict[int, _Row] = {
    **dict.fromkeys((301, 302, 303, 307, 308), _REDIRECTED),
    401: _REFUSED,
    403: _CODES["AuthorizationFailure"],
    404: _CODES["ResourceNotFound"],
}


@dataclass(frozen=True)
class RequestTarget:
    """The target of a request and its credential, for errors."""

    uri: str  # URL of the blob or folder, without secrets
    container: str  # its container
    account: str | None  # the storage account, or None if the host does not name it
    credential: str | None  # ``"account key"``, ``"SAS"`` or ``"token"``; None for anonymous requests
    # Unix time at which the SAS expires; None without a SAS, or if the SAS holds no time.
    sas_expires_at_s: float | None = None


def refusal(response: Response, request: RequestTarget, attempts: Attempts) -> StorageError | UsageError:
    """Return the error for an answer that is no success."""
    status, headers, code = response.status, response.headers, response.error_code
    row = _row(str(code), status, request, headers.get("date"))
    named = row.filled(
        container=request.container, account=request.account, credential=request.credential or "anonymous caller"
    )
    return named.error(
        request.uri,
        status=status,
        code=code,
        request_id=parse_word(headers.get("x-ms-request-id")),
        retry_after_s=demanded_pause_s(status, headers),
        attempts=attempts.number,
        elapsed_s=attempts.elapsed_s,
    )


def malformed_answer(response: Response, uri: str) -> StorageError:
    """Return the error for a success that describes no blob, as of a proxy."""
    what = f"Azure's answer is malformed: HTTP {response.status}, {described(response.headers)}"
    return StorageError(what, uri=uri, hint=f"{FOREIGN}: check account_host")


def malformed_credential(request: RequestTarget) -> CredentialsError:
    """Return the error for a key that signs nothing."""
    hint = "Copy it again; an account key is base64"
    return CredentialsError(f"The {request.credential} is malformed", uri=request.uri, hint=hint)


def raise_login_error(error: Exception, request: RequestTarget) -> NoReturn:
    """Raise the error for a missing token. The chained exception of azure-identity lists the logins that it tried."""
    from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError  # noqa: PLC0415 (0.2 s)

    if isinstance(error, asyncio.TimeoutError):
        raise CredentialsError("Azure gave no token in time", uri=request.uri, hint=_LOGIN_HINT) from None
    if isinstance(error, (ServiceRequestError, ServiceResponseError)):
        hint = "Check the network and HTTPS_PROXY, or give a key or SAS instead"
        raise ConnectError("No connection to Azure's login service", uri=request.uri, hint=hint) from error
    token_file = variable(_TOKEN_FILE)
    if token_file and token_file in str(error):  # it is missing while it is rotated
        hint = f"{_TOKEN_FILE} names it: '{token_file}'"
        missing = CredentialsError("The file of Azure's token cannot be read", uri=request.uri, hint=hint)
        missing.may_come = True
        raise missing from error
    if isinstance(error, AzureError):
        raise CredentialsError(
            "No Azure credentials were found, or none works", uri=request.uri, hint=_LOGIN_HINT
        ) from error
    raise CredentialsError(
        f"The credential object gave no token: {type(error).__name__}",
        uri=request.uri,
        hint="adlfs needs a credential of azure.identity.aio",
    ) from None


def name_account(error: StreamerError, request: RequestTarget) -> None:
    """Name the account in the error for an unknown host: the user may never have seen the host's name."""
    if isinstance(error, ConnectError) and error.code == UNKNOWN_HOST and request.account:
        error.message = f"There is no storage account {quoted(request.account)}. {error.message}"
        error.hint = "Check account_name, and account_host outside the public cloud"


def _row(code: str, status: int, request: RequestTarget, date: str | None) -> _Row:
    if status in (401, 403) and request.sas_expires_at_s is not None:
        now_s = time.time()
        expired_at = datetime.fromtimestamp(request.sas_expires_at_s, timezone.utc)
        if request.sas_expires_at_s <= now_s + (clock_offset_s(date, now_s) or 0.0):
            return ErrorRow(CredentialsError, f"The SAS expired at {expired_at:%Y-%m-%d %H:%M:%S} UTC", "Get a new one")
    is_passing = asks_for_another_attempt(status, code)
    row = None if is_passing else _CODES.get(code) or _STATUSES.get(status)
    row = row or row_of_status(status, "Azure could not answer", code)
    if request.credential is None and row is _REFUSED:
        return _PRIVATE
    if request.credential is None and row is _CODES["ResourceNotFound"]:
        return ErrorRow(ObjectNotFoundError, "There is no such blob or container, or it is not public", _LOGIN_HINT)
    return row
