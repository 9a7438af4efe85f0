"""The text of a library's exception is chained as a cause only where it repeats no secret and commands no terminal.

Options count however deep they lie: those of a chain's parts, of what an archive lies in, of a cache's target.
"""

from __future__ import annotations

import traceback
from typing import Any

import fsspec
import pytest
import torch
from each_row import each_row
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save
from servers.scripted_http import ScriptedServer

import streamer
from streamer.core.secrets.texts import SecretTexts

pytestmark = pytest.mark.usefixtures("short_pauses")

CANARY = "C4n4ryS3cr3tXyz"
TOKEN = "IQoJb3JpZ2luX2VjEJr0wEaCXVzLWVhc3Qt"
CLOSED = "127.0.0.1:9"  # nothing listens on the port of "discard"
HASTY = streamer.Options(max_attempts=1, block_deadline_s=0.5)
DATA = save({"weight": torch.arange(9.0)})

NESTED: dict[str, Any] = {
    "target_options": {"login": {"password": CANARY}},
    "remote_options": {"hosts": [{"ssh": {"password": CANARY}}]},
    "fo": f"https://user:{CANARY}@host/a.zip",
    "fo of a chain": f"simplecache::https://host/a.zip?sig={CANARY}",
    "headers": {"Authorization": f"Bearer {CANARY}"},
    "headers as pairs": [("X-Key", CANARY)],
    "connection_string": f"AccountName=acct;AccountKey={CANARY};BlobEndpoint=http://host/acct",
    "login": ("user", CANARY),
    "key": CANARY.encode(),
}


class Leaky(MemoryFileSystem):
    """Puts a text into the exceptions of one of its methods."""

    protocol = "leaky"
    cachable = False
    fails, text, cls = "", "", OSError

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._fail("open")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("leaky://"))
        return stripped

    def _fail(self, where: str) -> None:
        if where == Leaky.fails:
            raise Leaky.cls(Leaky.text)

    def info(self, path: str, **named: Any) -> Any:
        self._fail("info")
        return super().info(path, **named)

    def ls(self, path: str, **named: Any) -> Any:
        self._fail("ls")
        return super().ls(path, **named)

    def cat_file(self, path: str, **named: Any) -> Any:
        self._fail("read")
        return super().cat_file(path, **named)


@pytest.fixture(autouse=True)
def leaky(monkeypatch):
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    monkeypatch.setattr(Leaky, "cls", OSError)
    MemoryFileSystem.store.clear()
    MemoryFileSystem().pipe_file("/a/model.safetensors", DATA)
    yield monkeypatch
    MemoryFileSystem.store.clear()


def shown(uri: str, options: Any = None, **named: Any) -> str:
    """What a load that fails shows of its error and the causes of it."""
    with pytest.raises(streamer.StreamerError) as caught:
        streamer.load(uri, storage_options=options, options=HASTY, progress=False, **named)
    return "".join([*traceback.format_exception(caught.value), repr(vars(caught.value))])


PLACES = {"open": "leaky://a/model.safetensors", "info": "leaky://a/model.safetensors", "ls": "leaky://a"}


@pytest.mark.parametrize("place", [*PLACES, "read"])
@pytest.mark.parametrize("option", NESTED)
def test_a_cause_that_repeats_an_option_is_not_shown(leaky, option, place):
    leaky.setattr(Leaky, "fails", place)
    leaky.setattr(Leaky, "text", f"the login {CANARY} was refused")
    text = shown(PLACES.get(place, PLACES["info"]), {option.partition(" ")[0]: NESTED[option]})
    assert CANARY not in text
    assert "OSError" in text


@pytest.mark.parametrize("place", [*PLACES, "read"])
def test_a_cause_that_repeats_none_is_shown(leaky, place):
    leaky.setattr(Leaky, "fails", place)
    leaky.setattr(Leaky, "text", "the host example.org\nis out of order")
    assert "out of order" in shown(PLACES.get(place, PLACES["info"]), NESTED)


@pytest.mark.parametrize("place", [*PLACES, "read"])
def test_a_cause_that_commands_the_terminal_is_not_shown(leaky, place):
    leaky.setattr(Leaky, "fails", place)
    leaky.setattr(Leaky, "text", "\x1b[2Jowned")
    assert "\x1b" not in shown(PLACES.get(place, PLACES["info"]))


def test_an_option_of_a_callers_file_system_counts_too(leaky):
    fs = Leaky(target_options={"password": CANARY})
    leaky.setattr(Leaky, "fails", "info")
    leaky.setattr(Leaky, "text", f"the login {CANARY} was refused")
    assert CANARY not in shown("/a/model.safetensors", fs=fs)


REAL: dict[str, tuple[str, Any]] = {
    "what an archive lies in": ("zip://a.safetensors", {"fo": f"http://user:{CANARY}@{CLOSED}/a.zip"}),
    "a query of it": ("zip://a.safetensors", {"fo": f"http://{CLOSED}/a.zip?sig={CANARY}"}),
    "references": ("reference://a.safetensors", {"fo": f"http://{CLOSED}/refs.json?sig={CANARY}"}),
    "a file of that name": ("zip://a.safetensors", {"fo": f"file:///absent/a.zip?{CANARY}=1&sig={CANARY}"}),
}


@pytest.mark.parametrize("case", REAL)
def test_a_url_in_the_options_is_not_shown(case):
    assert CANARY not in shown(*REAL[case])


def test_what_s3_says_of_a_request_is_not_shown():
    """botocore puts the server's text into its exception."""

    def script(request, answer):
        reported = f"you sent {TOKEN}"
        answer.become(403, f"<Error><Code>AccessDenied</Code><Message>{reported}</Message></Error>".encode())

    with ScriptedServer(DATA, script) as server:
        server.answers_head = True
        options = {"key": "AKIDEXAMPLE", "secret": "x" * 20, "token": TOKEN}
        endpoint = server.url.removesuffix("/object")
        text = shown("s3://bucket/a.safetensors", {**options, "endpoint_url": endpoint})
    assert "HTTP 403" in text
    assert TOKEN not in text


def test_a_request_id_that_repeats_the_token_is_not_shown():
    with ScriptedServer(DATA, lambda _, answer: answer.become(403, b"", x_request_id=TOKEN)) as server:
        text = shown(server.url, {"headers": {"Authorization": f"Bearer {TOKEN}"}})
    assert "request id ***" in text
    assert TOKEN not in text


def test_a_url_that_is_no_text_is_a_usage_error():
    assert "nothing\\udc9b" in shown("memory://nothing\udc9b/a.safetensors", {"key": "\udc9b" * 9})


HARMLESS = {
    "endpoint_url": "https://storage.example.org:9000",
    "region_name": "eu-central-1",
    "account_name": "exampleaccount",
    "target_protocol": "webhdfs",
    "cache_storage": "/var/cache/models",
    "connection_verify": "/etc/ssl/private-ca.pem",
    "requester_pays": "my-project-for-bills",
    "token": "anon",
}


@each_row("option", HARMLESS)
def test_what_is_no_secret_stays_in_the_text(option):
    text = f"no connection to {HARMLESS[option]} over there"
    assert SecretTexts("s3://bucket/key", HARMLESS).masked(text) == text
