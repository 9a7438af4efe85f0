"""Credentials that a client finds in files or at metadata servers, and a server repeats, are shown by no error."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import google.auth
import google.oauth2.credentials
import pytest
from azure.core.credentials import AccessToken
from each_row import each_row
from huggingface_hub import constants
from servers.places import base
from servers.scripted_http import Answer, Request, ScriptedServer
from shown import shown_by

import streamer
from streamer.core.secrets.texts import SecretTexts, note_credential

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

TOKEN = "Canary0123456789.Canary-abcdefghij"  # a word, so that it may pass for a code or a request id
BRIEF = streamer.Options(max_attempts=1, block_deadline_s=0.5)
NAMES = (
    "x-amz-request-id",
    "x-ms-request-id",
    "x-ms-error-code",
    "X-GUploader-UploadID",
    "X-Error-Code",
    "X-Request-Id",
)


class Login:
    """As azure-identity has them."""

    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return AccessToken(TOKEN, 4102444800)


def repeating(status: int) -> Any:
    """Put the token, which the request must have brought along, wherever an error is looked for."""

    def script(request: Request, answer: Answer) -> None:
        assert TOKEN in str(request.headers)
        body = f"<Error><Code>{TOKEN}</Code><Message>You sent {TOKEN}</Message></Error>"
        if "googleapis" in request.path or request.path.startswith(("/storage/", "/api/")):
            body = json.dumps({"error": {"message": TOKEN, "errors": [{"reason": TOKEN}]}})
        answer.become(status, body.encode(), **{name.replace("-", "_"): TOKEN for name in NAMES})

    return script


def s3(server: ScriptedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    named = folder / "credentials"
    named.write_text(f"[default]\naws_access_key_id = AKID\naws_secret_access_key = s\naws_session_token = {TOKEN}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(named))
    return "s3://bucket/folder", {"endpoint_url": base(server)}


def hub(server: ScriptedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    (folder / "token").write_text(TOKEN)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    return "hf://owner/name", {"endpoint": base(server)}


def azure(server: ScriptedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    connection = f"BlobEndpoint={base(server)}/account"
    return "az://container/folder", {"connection_string": connection, "credential": Login()}


def gcs(server: ScriptedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    login = google.oauth2.credentials.Credentials(TOKEN)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(google.auth, "default", lambda **_: (login, "project"))
    return "gs://bucket/folder", {"endpoint_url": base(server), "skip_instance_cache": True}


def told_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + "\n".join([str(error), repr(vars(error)), *shown_by(error)])


@each_row("status", [400, 401, 403, 404])
@each_row("place", [s3, hub, azure, gcs])
def test_a_located_token_that_a_server_repeats_is_not_shown_regression(
    place: Any, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed for a code or a request id."""
    for name in ("AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer(b"", repeating(status)) as server:
        uri, storage_options = place(server, tmp_path, monkeypatch)
        with pytest.raises(streamer.StorageError) as caught:
            streamer.load(uri, storage_options=storage_options, options=BRIEF)
        assert server.requests
    assert TOKEN not in told_of(caught.value)


def test_a_login_of_the_netrc_that_comes_back_is_not_shown_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login user password {TOKEN}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    sent: list[str] = []

    def script(request: Request, answer: Answer) -> None:
        sent.append(request.headers["authorization"].removeprefix("Basic ").rstrip("="))
        answer.become(403, f"<Error><Code>{sent[0]}</Code></Error>".encode()[:8000], x_request_id=sent[0])

    with ScriptedServer(b"", script) as server, pytest.raises(streamer.StorageError) as caught:
        streamer.load(
            f"{base(server)}/a.safetensors", storage_options={"client_kwargs": {"trust_env": True}}, options=BRIEF
        )
    assert sent[0] not in told_of(caught.value)
    assert "***" in str(caught.value)


def test_what_is_noted_belongs_to_the_question_alone() -> None:
    first, second = SecretTexts("s3://bucket/a"), SecretTexts("s3://bucket/b")
    note_credential("nobody asks just now")
    with first.masking_errors():
        note_credential(TOKEN)
        note_credential(TOKEN)
        note_credential(None)
        with second.masking_errors():
            note_credential("another-credential")
    assert first.masked(f"{TOKEN} another-credential") == "*** another-credential"
    assert second.masked(f"{TOKEN} another-credential") == f"{TOKEN} ***"
    assert SecretTexts("s3://bucket/c").masked(TOKEN) == TOKEN
