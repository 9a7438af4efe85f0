"""Every answer of Azure and every exception of its clients has one class here, and takes no secret with it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import traceback
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)
from yarl import URL

from streamer.backends.azure.errors import LoginFailedError, Request, is_transient, raise_storage_error
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    HttpStatusError,
    ObjectNotFoundError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
    UsageError,
)

ASKED = Request("az://c/a", "c", "acct", "acct.blob.core.windows.net", "account key")
NOBODY = replace(ASKED, credential=None)
KEY = ConnectionKey("acct.blob.core.windows.net", 443, True, True, None, None, None)
SECRET_URL = "https://acct.blob.core.windows.net/c/a?sig=CANARY"


class Answer:
    """What azure-core's exceptions look at in a response."""

    reason = "CANARY"

    def __init__(self, status: int, code: str | None) -> None:
        self.status_code = status
        self.headers = {"x-ms-request-id": "REQ1", **({"x-ms-error-code": code} if code else {})}


def answer(status: int, code: str | None) -> HttpResponseError:
    return HttpResponseError("CANARY", response=Answer(status, code))  # type: ignore[arg-type]


def network(reason: Exception, cls: type[Any] = ServiceRequestError) -> Exception:
    error: Exception = cls(reason, error=reason)
    error.__cause__ = reason
    return error


def login(reason: Exception) -> Exception:
    error = LoginFailedError()
    error.__cause__ = reason
    return error


def told(error: Exception, request: Request = ASKED, attempts: int = 2) -> StreamerError:
    with pytest.raises(StreamerError) as caught:
        raise_storage_error(error, request, attempts)
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "cls"),
    [
        (404, "BlobNotFound", ObjectNotFoundError),
        (404, "ContainerNotFound", ObjectNotFoundError),
        (409, "ContainerBeingDeleted", ObjectNotFoundError),
        (404, "ResourceNotFound", ObjectNotFoundError),
        (404, None, ObjectNotFoundError),
        (403, "AuthenticationFailed", CredentialsError),
        (401, "InvalidAuthenticationInfo", CredentialsError),
        (401, None, CredentialsError),
        (403, "KeyBasedAuthenticationNotPermitted", CredentialsError),
        (401, "NoAuthenticationInformation", AccessDeniedError),
        (409, "PublicAccessNotPermitted", AccessDeniedError),
        (403, "AuthorizationFailure", AccessDeniedError),
        (403, "AuthorizationPermissionMismatch", AccessDeniedError),
        (403, "AuthorizationResourceTypeMismatch", AccessDeniedError),
        (403, "AuthorizationSourceIPMismatch", AccessDeniedError),
        (403, "AccountIsDisabled", AccessDeniedError),
        (403, "SomethingNew", AccessDeniedError),
        (409, "BlobArchived", AccessDeniedError),
        (409, "SomethingNew", HttpStatusError),
        (400, "InvalidHeaderValue", HttpStatusError),
        (503, "ServerBusy", HttpStatusError),
    ],
)
def test_an_answer_of_azure_has_a_class_and_its_facts(status: int, code: str | None, cls: type[StorageError]) -> None:
    error = told(answer(status, code))
    assert isinstance(error, StorageError)
    assert type(error) is cls
    assert (error.status, error.code, error.request_id) == (status, code, "REQ1")
    assert (error.uri, error.attempts) == ("az://c/a", 2)


def test_a_name_that_azure_refuses_is_the_callers_mistake() -> None:
    assert type(told(answer(400, "InvalidResourceName"))) is UsageError


def test_a_refused_anonymous_caller_is_told_to_log_in() -> None:
    for refusal in (answer(403, "AuthenticationFailed"), answer(401, None), answer(409, "PublicAccessNotPermitted")):
        error = told(refusal, NOBODY)
        assert type(error) is AccessDeniedError
        assert "az login" in str(error)
    assert "not public" in str(told(answer(404, "ResourceNotFound"), NOBODY))


@pytest.mark.parametrize(("expires_at_s", "says_expired"), [(86_400.0, True), (4e9, False), (None, False)])
def test_an_expired_sas_is_told_by_its_own_date(expires_at_s: float | None, says_expired: bool) -> None:
    request = replace(ASKED, credential="SAS", sas_expires_at_s=expires_at_s)
    error = told(answer(403, "AuthenticationFailed"), request)
    assert type(error) is CredentialsError
    assert ("expired at 1970-01-02 00:00:00 UTC" in str(error)) is says_expired


@pytest.mark.parametrize(
    ("error", "cls", "says"),
    [
        (network(aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "no"))), ConnectError, "no storage account"),
        (network(aiohttp.ClientConnectorError(KEY, OSError(111, "no"))), ConnectError, "No connection to acct.blob"),
        (
            network(aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("no"))),
            TlsError,
            "connection_verify",
        ),
        (network(aiohttp.ClientConnectorSSLError(KEY, OSError("no"))), TlsError, "TLS"),
        (network(aiohttp.ClientProxyConnectionError(KEY, OSError("no"))), ConnectError, "proxy"),
        (
            network(
                aiohttp.ClientHttpProxyError(aiohttp.RequestInfo(URL(SECRET_URL), "GET", {}), (), status=403),  # type: ignore[arg-type]
                ServiceResponseError,
            ),
            HttpStatusError,
            "proxy",
        ),
        (network(aiohttp.InvalidURL(SECRET_URL)), ConnectError, "No connection"),
        (network(aiohttp.ServerDisconnectedError("CANARY"), ServiceResponseError), ConnectError, "No connection"),
        (network(asyncio.TimeoutError(), ServiceResponseTimeoutError), TransferTimeoutError, "in time"),
        (network(asyncio.TimeoutError(), ServiceRequestTimeoutError), TransferTimeoutError, "in time"),
        (login(ClientAuthenticationError("tried all")), CredentialsError, "az login"),
        (login(asyncio.TimeoutError()), CredentialsError, "az login"),
        (login(network(aiohttp.ClientConnectorError(KEY, OSError("no")))), ConnectError, "login service"),
        (login(RuntimeError("CANARY")), CredentialsError, "RuntimeError"),
        (ValueError("CANARY"), CredentialsError, "account key is malformed"),
        (RuntimeError("CANARY"), StorageError, "RuntimeError"),
    ],
)
def test_an_exception_of_the_network_or_a_login_has_a_class(
    error: Exception, cls: type[StreamerError], says: str
) -> None:
    found = told(error)
    assert type(found) is cls
    assert found.uri == "az://c/a"
    assert says in str(found)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (answer(503, "ServerBusy"), True),
        (answer(500, "OperationTimedOut"), True),
        (answer(403, "AuthenticationFailed"), False),
        (answer(404, "BlobNotFound"), False),
        (network(aiohttp.ClientConnectorError(KEY, OSError("no"))), True),
        (network(aiohttp.ServerDisconnectedError(), ServiceResponseError), True),
        (network(aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_AGAIN, "no"))), True),
        (network(aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "no"))), False),
        (network(aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("no"))), False),
        (ValueError(), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, is_one: bool) -> None:
    assert is_transient(error) is is_one
