"""Redirects inside of a chained URL: no secret goes to another host, and no way leads to this machine."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from each_row import each_row
from fsspec.implementations.http import HTTPFileSystem
from servers.places import base
from servers.scripted_http import Answer, Request, Script, ScriptedServer

import streamer
from streamer.backends.fsspec import http_sessions
from streamer.backends.fsspec.foreign_file_systems import with_guarded_links
from streamer.backends.fsspec.http_sessions import GuardedSessions
from streamer.backends.fsspec.instances import close_idle

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

SECRET = "C4n4ryS3cr3tXyz"
HEADER = json.dumps({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
SHARD = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)
LATER = streamer.Options(max_attempts=1, block_deadline_s=1.0)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.safetensors", SHARD)
    return file.getvalue()


CONTENTS = {"cache": SHARD, "blocks": SHARD, "archive": zipped(), "archive in a cache": zipped(), "named": zipped()}
PLACE = "{}/a.safetensors"
URLS = {
    "cache": f"simplecache::{PLACE}",
    "blocks": f"blockcache::{PLACE}",
    "archive": f"zip://a.safetensors::{PLACE}",
    "archive in a cache": f"zip://a.safetensors::simplecache::{PLACE}",
    "named": "zip://a.safetensors",
}
SECRETS: dict[str, dict[str, Any]] = {
    "headers": {"headers": {"X-Api-Key": SECRET}},
    "cookies": {"cookies": {"c": SECRET}},
    "headers of the client": {"client_kwargs": {"headers": {"X-Api-Key": SECRET}}},
    "cookies of the client": {"client_kwargs": {"cookies": {"c": SECRET}}},
}


def options_of(chain: str, server: ScriptedServer, http: dict[str, Any], folder: Path) -> dict[str, Any]:
    if chain == "named":
        return {"fo": PLACE.format(base(server)), "target_options": http}
    caches = {name: {"cache_storage": str(folder)} for name in ("simplecache", "blockcache") if name in URLS[chain]}
    return {"http": http, **caches}


def load(chain: str, server: ScriptedServer, http: dict[str, Any], folder: Path) -> dict[str, Any]:
    uri = URLS[chain].format(base(server))
    return streamer.load(uri, storage_options=options_of(chain, server, http, folder), options=LATER)


def leading_to(url: str) -> Script:
    return lambda request, answer: answer.become(302, Location=url)


@pytest.fixture
def foreign() -> Iterator[ScriptedServer]:
    """A host that nobody gave a secret to."""
    with ScriptedServer(SHARD) as server:
        yield server


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("chain", URLS)
def test_a_redirect_in_a_chain_takes_no_secret_to_another_host_regression(
    foreign: ScriptedServer, chain: str, secret: str, tmp_path: Path
) -> None:
    """fsspec's client followed it, and aiohttp takes all but ``Authorization`` along."""
    with ScriptedServer(b"", leading_to(foreign.url)) as named:
        with pytest.raises(streamer.RedirectError, match="to another host") as caught:
            load(chain, named, SECRETS[secret], tmp_path)
        assert named.requests
    assert foreign.requests == []
    assert SECRET not in str(caught.value)
    assert caught.value.hint


def test_a_login_in_the_url_does_not_follow_a_redirect_regression(foreign: ScriptedServer) -> None:
    with ScriptedServer(b"", leading_to(foreign.url)) as named:
        login = base(named).replace("://", f"://user:{SECRET}@")
        with pytest.raises(streamer.RedirectError, match="to another host"):
            streamer.load(f"simplecache::{login}/a.safetensors", options=LATER)
    assert foreign.requests == []


@each_row("host", ["169.254.169.254", "metadata.google.internal", "100.100.100.200"])
@each_row("chain", URLS)
def test_a_redirect_in_a_chain_leads_to_no_metadata_server_regression(chain: str, host: str, tmp_path: Path) -> None:
    """It was asked, secret or not."""
    with ScriptedServer(b"", leading_to(f"http://{host}/latest")) as named:
        with pytest.raises(streamer.RedirectError, match="redirects to a"):
            load(chain, named, {}, tmp_path)
        assert named.requests


@pytest.mark.parametrize("chain", sorted(URLS.keys() - {"blocks"}))  # which wants a page that lists the file
def test_a_redirect_without_a_secret_is_followed(chain: str, tmp_path: Path) -> None:
    with ScriptedServer(CONTENTS[chain]) as last, ScriptedServer(b"", leading_to(last.url)) as named:
        assert load(chain, named, {}, tmp_path)["a"].tolist() == [0] * 8


def test_the_caller_may_allow_redirects_to_this_machine() -> None:
    options = with_guarded_links("simplecache::http://host/x", {"http": {"local_redirects": True, "a": 1}})
    assert options["http"]["get_client"].may_be_local
    assert set(options["http"]) == {"get_client", "a"}


def clients_in(value: Any) -> int:
    if not isinstance(value, dict):
        return 0
    return ("get_client" in value) + sum(map(clients_in, value.values()))


@each_row(
    ("uri", "options", "guarded"),
    [
        ("simplecache::s3://bucket/x", {"s3": {"anon": True}}, 0),
        ("memory://x", {}, 0),
        ("zip://x::file:///a.zip", {}, 0),
        ("simplecache::https://host/x", {}, 1),
        ("simplecache://host/x", {"target_protocol": "https"}, 1),
        ("simplecache://host/x", {"target_protocol": "s3", "target_options": {"anon": True}}, 0),
        ("reference://x", {"fo": "https://host/refs.json", "remote_protocol": "http"}, 2),
        ("zip://x", {"fo": "simplecache::http://host/a.zip"}, 1),
        ("zip://x::dir://y", {"dir": {"target_protocol": "http"}}, 1),
        ("zip://x", {"fo": "/a.zip"}, 0),
    ],
)
def test_every_http_file_system_of_a_chain_keeps_to_the_rules(uri: str, options: dict[str, Any], guarded: int) -> None:
    assert clients_in(with_guarded_links(uri, options)) == guarded


def test_the_file_systems_of_a_chain_are_shared_and_leave_with_the_last_load() -> None:
    options = {"http": {"block_size": 4321}}  # of no other test
    stores = [streamer.plugins.open_store("simplecache::http://host/a", options) for _ in range(3)]
    (guarded,) = {store._fs.fs for store in stores}  # type: ignore[attr-defined]
    assert isinstance(guarded.get_client, GuardedSessions)
    assert guarded in HTTPFileSystem._cache.values()
    del stores
    close_idle()
    assert guarded not in HTTPFileSystem._cache.values()


def test_a_file_system_of_the_callers_own_is_left_as_it_is(foreign: ScriptedServer) -> None:
    """It is the caller's, redirects too."""
    with ScriptedServer(b"", leading_to(foreign.url)) as named:
        own = fsspec.filesystem("simplecache", target_protocol="http", target_options={"headers": {"X-Key": "abc"}})
        assert streamer.load(named.url, fs=own)["a"].tolist() == [0] * 8
    assert own.fs.get_client.__module__ == "fsspec.implementations.http"
    assert foreign.requests


@each_row("chain", URLS)
@each_row("name", ["ssl", "verify_ssl"])
def test_certificates_are_checked_inside_of_a_chain_too_regression(chain: str, name: str, tmp_path: Path) -> None:
    """``ssl=False`` was obeyed there."""
    with ScriptedServer(CONTENTS[chain]) as server:
        with pytest.raises(streamer.OptionError, match="Unverified TLS is refused"):
            load(chain, server, {name: False}, tmp_path)
        assert not server.requests


@pytest.mark.parametrize("chain", [name for name in URLS if name != "named"])
def test_a_silent_server_behind_a_chain_is_given_up_regression(
    chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for for minutes, as aiohttp does by itself."""
    monkeypatch.setattr(http_sessions, "SILENCE_S", 0.2)

    def silent(request: Request, answer: Answer) -> None:
        server.stopping.wait(60)

    with ScriptedServer(CONTENTS[chain], silent) as server, pytest.raises(streamer.StorageError):
        load(chain, server, {"headers": {"X-Own": chain}}, tmp_path)  # else fsspec has a session of another test
