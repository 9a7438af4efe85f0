"""What the environment holds for clients of storages is shown by no error: no credential, and no proxy's password."""

from __future__ import annotations

import traceback

import pytest
from each_row import each_row
from servers.background import served
from servers.places import base
from servers.scripted_http import Answer, Request, ScriptedServer
from servers.scripted_proxy import refusing_proxy
from shown import shown_by

import streamer
from streamer import _native
from streamer.core.outages.outage_waits import OutageWaits

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

TOKEN = "FwoGZXIvYXdzEBYaDCanaryCanaryCanary0123456789"
PASSWORD = "CanaryProxyPassword01"
BRIEF = streamer.Options(max_attempts=1, block_deadline_s=0.5)


def told_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + "\n".join(shown_by(error))


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Canary" + "s" * 34)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


@pytest.mark.usefixtures("_credentials")
def test_a_wrong_word_shows_no_variable_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(streamer.OptionError) as caught:
        streamer.load("/absent", verify="manifst")  # type: ignore[arg-type]
    assert TOKEN not in told_of(caught.value)
    monkeypatch.setenv("STREAMER_MAX_ATTEMPTS", "x")
    with pytest.raises(streamer.OptionError) as caught:
        streamer.load("/absent")
    assert TOKEN not in told_of(caught.value)


@pytest.mark.parametrize("where", ["Message", "Code"])
@pytest.mark.parametrize("status", [400, 403, 404, 503])
@pytest.mark.usefixtures("_credentials")
def test_a_token_that_s3_repeats_is_not_shown_regression(status: int, where: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        sent = request.headers["x-amz-security-token"]
        body = {"Code": "Weird", "Message": "no", where: sent}
        text = "".join(f"<{name}>{value}</{name}>" for name, value in body.items())
        answer.become(status, f"<Error>{text}</Error>".encode(), Content_Type="application/xml")

    with ScriptedServer(b"", script) as server, pytest.raises(streamer.StorageError) as caught:
        streamer.load("s3://bucket/folder", storage_options={"endpoint_url": base(server)}, options=BRIEF)
    assert TOKEN not in told_of(caught.value)


@each_row(
    ("uri", "options"),
    [("s3://bucket/folder", {"key": "k", "secret": "s"}), ("gs://bucket/folder", {"token": "anon"})],
)
@each_row("status", [403, 407, 502])
def test_the_password_of_a_proxy_is_not_shown_regression(
    monkeypatch: pytest.MonkeyPatch, uri: str, options: dict[str, str], status: int
) -> None:
    with refusing_proxy(status) as proxy, served(proxy):
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:{PASSWORD}@127.0.0.1:{proxy.server_address[1]}")
        with pytest.raises(streamer.StorageError) as caught:
            streamer.load(uri, storage_options=options, options=BRIEF)
    assert PASSWORD not in told_of(caught.value)


def test_a_redirect_that_is_refused_shows_nothing_of_the_url_regression() -> None:
    def script(request: Request, answer: Answer) -> None:
        answer.become(302, b"", Location=f"ftp://elsewhere/x?sig={TOKEN}")

    with ScriptedServer(b"", script) as server, pytest.raises(streamer.RedirectError) as caught:
        streamer.load(f"{base(server)}/a.safetensors?sig={TOKEN}", options=BRIEF)
    assert TOKEN not in told_of(caught.value)


def test_a_lookup_without_a_request_is_no_answer_regression() -> None:
    """Servers that nobody ever reached were waited for after one."""
    patience = OutageWaits(60)

    def without_credentials() -> None:
        raise streamer.CredentialsError("no credentials")

    def refused() -> None:
        raise streamer.ConnectError("refused")

    for question, kind in ((without_credentials, streamer.StorageError), (refused, streamer.ConnectError)):
        with pytest.raises(kind):
            patience.ask("http://never-reached", question, _native.Lookup(b"http://never-reached", ""))
    assert patience.outages == 0
