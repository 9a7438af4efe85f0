"""The tables of the GCS backend's errors: which class, what it carries, and what it must not repeat."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from each_row import each_row
from google.auth import exceptions as google

from streamer.backends.gcs.errors import Answer, Caller, raise_storage_error, refusal
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
)

KNOWN = Caller(why_anonymous=None, user_project=None)


def document(reason: Any) -> dict[str, Any]:
    return {"error": {"code": 400, "message": "CANARY", "errors": [{"reason": reason, "message": "CANARY"}]}}


@each_row(
    ("status", "caller", "cls"),
    [
        (400, KNOWN, HttpStatusError),
        (400, Caller(None, "project"), AccessDeniedError),
        (401, KNOWN, CredentialsError),
        (403, KNOWN, AccessDeniedError),
        (401, Caller("none found", None), CredentialsError),
        (403, Caller("none found", None), CredentialsError),
        (401, Caller("emulator", None), CredentialsError),
        (401, Caller("asked", None), AccessDeniedError),
        (404, KNOWN, ObjectNotFoundError),
        (302, KNOWN, RedirectError),
        (429, KNOWN, HttpStatusError),
        (503, KNOWN, HttpStatusError),
        (200, KNOWN, StorageError),
    ],
)
def test_each_status_has_its_class_and_facts(status: int, caller: Caller, cls: type[StorageError]) -> None:
    answer = Answer(status, document("someReason"), request_id="ID7", attempts=3, elapsed_s=1.5)
    error = refusal(answer, caller, "gs://bucket/key")
    assert type(error) is cls
    assert (error.status, error.code, error.request_id, error.attempts) == (status, "someReason", "ID7", 3)
    assert "gs://bucket/key" in str(error)
    assert "CANARY" not in str(error)


@each_row("reason", ["has spaces", "CANARY\n", "x" * 100, 7, None, ["forbidden"], {}])
def test_a_malformed_reason_is_not_shown(reason: Any) -> None:
    assert Answer(403, document(reason)).reason is None


@pytest.mark.parametrize(
    "reported", [None, {}, {"error": "text"}, {"error": {"errors": []}}, {"error": {"errors": "x"}}]
)
def test_an_answer_without_a_reason_is_accepted(reported: Any) -> None:
    assert refusal(Answer(403, reported), KNOWN, "gs://bucket/key").code is None


@each_row(
    ("error", "cls"),
    [
        (google.DefaultCredentialsError("absent"), CredentialsError),
        (google.RefreshError("CANARY", {"error": "invalid_grant", "id_token": "CANARY"}), CredentialsError),
        (google.TransportError("no route"), ConnectError),
        (google.MalformedError("CANARY"), CredentialsError),
        (TypeError("unknown argument"), OptionError),
        (RuntimeError("else"), StorageError),
    ],
)
def test_each_exception_has_its_class(error: Exception, cls: type[StreamerError]) -> None:
    with pytest.raises(StreamerError) as caught:
        raise_storage_error(error, "gs://bucket/key")
    assert type(caught.value) is cls
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))


def test_what_a_token_server_said_gives_its_code_only() -> None:
    with pytest.raises(CredentialsError) as caught:
        raise_storage_error(google.RefreshError("CANARY", {"error": "invalid_grant", "error_description": "CANARY"}))
    assert caught.value.code == "invalid_grant"
    assert "renew" not in str(caught.value)
    assert "this machine's clock" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_cause_without_secrets_is_kept() -> None:
    cause = google.TransportError("gone")
    with pytest.raises(ConnectError) as caught:
        raise_storage_error(cause)
    assert caught.value.__cause__ is cause
