"""Every answer of Azure and every exception of its clients has one class here, and takes no secret with it."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from each_row import each_row

from streamer.backends.azure.errors import RequestTarget, name_account, raise_login_error, refusal
from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.retry import Attempts
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    HttpStatusError,
    ObjectNotFoundError,
    StorageError,
    StreamerError,
    UsageError,
)
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import UNKNOWN_HOST

ASKED = RequestTarget("az://c/a", "c", "acct", "account key")
NOBODY = replace(ASKED, credential=None)


class Answer:
    """What is looked at in an answer."""

    def __init__(self, status: int, code: str | None) -> None:
        self.status, self.error_code, self.body = status, code, b"CANARY"
        self.headers = {"x-ms-request-id": "REQ1", "x-text": "CANARY"}


def answer(status: int, code: str | None) -> Answer:
    return Answer(status, code)


def reported(answered: Answer, request: RequestTarget = ASKED) -> StreamerError:
    taken = Attempts(answer_times(Limits()))
    taken.number = 2
    error = refusal(answered, request, taken)  # type: ignore[arg-type]
    assert "CANARY" not in str(error)
    return error


@each_row(
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
    error = reported(answer(status, code))
    assert isinstance(error, StorageError)
    assert type(error) is cls
    assert (error.status, error.code, error.request_id) == (status, code, "REQ1")
    assert (error.uri, error.attempts) == ("az://c/a", 2)


def test_a_name_that_azure_refuses_is_the_callers_mistake() -> None:
    assert type(reported(answer(400, "InvalidResourceName"))) is UsageError


def test_the_error_advises_a_refused_anonymous_caller_to_log_in() -> None:
    for refused in (answer(403, "AuthenticationFailed"), answer(401, None), answer(409, "PublicAccessNotPermitted")):
        error = reported(refused, NOBODY)
        assert type(error) is AccessDeniedError
        assert "az login" in str(error)
    assert "not public" in str(reported(answer(404, "ResourceNotFound"), NOBODY))


@pytest.mark.parametrize(("expires_at_s", "says_expired"), [(86_400.0, True), (4e9, False), (None, False)])
def test_an_expired_sas_is_reported_with_its_date(expires_at_s: float | None, says_expired: bool) -> None:
    request = replace(ASKED, credential="SAS", sas_expires_at_s=expires_at_s)
    error = reported(answer(403, "AuthenticationFailed"), request)
    assert type(error) is CredentialsError
    assert ("expired at 1970-01-02 00:00:00 UTC" in str(error)) is says_expired


@pytest.mark.parametrize(
    ("error", "cls", "says"),
    [
        (ClientAuthenticationError("tried all"), CredentialsError, "az login"),
        (asyncio.TimeoutError(), CredentialsError, "az login"),
        (ServiceRequestError("no"), ConnectError, "login service"),
        (RuntimeError("CANARY"), CredentialsError, "RuntimeError"),
    ],
)
def test_an_exception_of_a_login_has_a_class(error: Exception, cls: type[StreamerError], says: str) -> None:
    with pytest.raises(cls, match=says) as caught:
        raise_login_error(error, ASKED)
    assert type(caught.value) is cls
    assert caught.value.uri == "az://c/a"
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))


def test_an_account_without_a_host_is_named() -> None:
    for code, names_it in ((UNKNOWN_HOST, True), (None, False)):
        error = ConnectError("There is no host 'acct.invalid'", code=code)
        name_account(error, ASKED)
        assert ("no storage account 'acct'" in str(error)) is names_it
