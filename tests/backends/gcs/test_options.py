"""What the GCS backend makes of URLs, options and tokens, without a server."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gcsfs
import google.auth.credentials
import pytest
from each_row import each_row
from fsspec.config import conf
from google.auth.exceptions import DefaultCredentialsError, RefreshError

from streamer.backends.gcs import session
from streamer.backends.gcs.credentials import KEPT, GoogleLogin, Logins, bearer_of
from streamer.backends.gcs.options import filled_options, only_of_aiohttp
from streamer.backends.gcs.store import GcsStore, streamer_open_store, streamer_source_kind
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.store.sources import HttpSource


class Tokens(google.auth.credentials.Credentials):  # type: ignore[misc]  # google-auth's base has no types
    """Credentials whose n-th token is ``token-n``; each lives so long."""

    def __init__(self, lifetime_s: float = 3600) -> None:
        super().__init__()
        self.lifetime_s = lifetime_s
        self.renewals = 0
        self.is_broken = False

    def refresh(self, request: Any) -> None:
        if self.is_broken:
            raise RefreshError("no")
        self.renewals += 1
        self.token = f"token-{self.renewals}"
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        self.expiry = now + timedelta(seconds=self.lifetime_s)


def file_system(credentials: Any) -> Any:
    return SimpleNamespace(credentials=credentials, renewal=threading.Lock())


@each_row(
    ("uri", "root", "shown"),
    [
        ("gs://b/k", "b/k", "gs://b/k"),
        ("gcs://b/folder/", "b/folder", "gcs://b/folder"),
        ("gs://b/k#12", "b/k", "gs://b/k#12"),
        ("gs://b/k?generation=12", "b/k", "gs://b/k#12"),
        ("gs://b/a#b#12", "b/a#b", "gs://b/a#b#12"),
        ("gs://b/a#b", "b/a#b", "gs://b/a#b"),
        ("gs://b/k?generation=CANARY", "b/k?generation=CANARY", "gs://b/k"),
    ],
)
def test_digits_behind_the_name_pin_a_generation(uri: str, root: str, shown: str) -> None:
    store = GcsStore(uri, {"token": "anon"})
    assert store.root == root
    assert store._uri(root) == shown


def test_only_its_own_schemes_are_served() -> None:
    assert streamer_open_store("s3", "s3://b/k", {}, Limits()) is None
    assert isinstance(streamer_open_store("gs", "gs://b/k", {"token": "anon"}, Limits()), GcsStore)
    assert [streamer_source_kind(scheme) for scheme in ("gs", "gcs", "s3")] == [HttpSource, HttpSource, None]


def test_the_configuration_of_fsspec_fills_what_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conf, "gs", {"token": "anon", "project": "configured"})
    assert filled_options({"project": "given"}, {}) == {"token": "anon", "project": "given"}


@each_row(
    ("given", "environment", "expected"),
    [
        ({}, {}, {}),
        ({"project": None}, {}, {}),
        ({}, {"STORAGE_EMULATOR_HOST": "h:1"}, {"endpoint_url": "http://h:1", "token": "emulator"}),
        ({"token": "anon"}, {"STORAGE_EMULATOR_HOST": "http://h"}, {"endpoint_url": "http://h", "token": "anon"}),
        ({"endpoint_url": "https://e"}, {"STORAGE_EMULATOR_HOST": "h:1"}, {"endpoint_url": "https://e"}),
        ({}, {"STORAGE_EMULATOR_HOST": "default"}, {}),
        ({}, {"GOOGLE_APPLICATION_CREDENTIALS": "/key"}, {"key_file": "/key"}),
        ({"token": "anon"}, {"GOOGLE_APPLICATION_CREDENTIALS": "/key"}, {"token": "anon"}),
    ],
)
def test_the_environment_fills_what_is_left_open(given: Any, environment: Any, expected: Any) -> None:
    assert filled_options(given, environment) == expected


def test_an_unread_key_file_and_a_coroutines_instance_are_refused(tmp_path: Any) -> None:
    for options in ({"token": str(tmp_path / "absent.json")}, {"token": "key.json"}, {"asynchronous": True}):
        with pytest.raises(OptionError):
            filled_options(options, {})


def test_the_class_that_asks_by_grpc_is_not_used() -> None:
    extended = gcsfs.GCSFileSystem
    assert extended is not gcsfs.core.GCSFileSystem  # else this test shows nothing
    assert not issubclass(session.GCSFileSystem, extended)


def test_threads_that_find_no_token_get_one_between_them() -> None:
    together = threading.Barrier(16)

    class LookedAtTogether(Tokens):
        @property
        def valid(self) -> bool:
            together.wait()
            return False

    tokens = LookedAtTogether()
    fs = file_system(tokens)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: bearer_of(fs).token, range(16))) == {"token-1"}
    assert tokens.renewals == 1


def test_a_refused_token_is_replaced_and_another_is_not() -> None:
    fs = file_system(Tokens())
    assert bearer_of(fs).token == "token-1"
    assert bearer_of(fs, refused="token-1").token == "token-2"
    assert bearer_of(fs, refused="token-1").token == "token-2"


def test_a_renewal_that_fails_matters_only_when_the_time_is_over() -> None:
    tokens = Tokens(lifetime_s=100)  # google-auth calls it old at once
    fs = file_system(tokens)
    first = bearer_of(fs)
    tokens.is_broken = True
    assert bearer_of(fs) == first
    tokens.expiry -= timedelta(seconds=101)
    with pytest.raises(RefreshError):
        bearer_of(fs)


def test_the_project_for_quota_is_sent_beside_the_token() -> None:
    credentials = google.oauth2.credentials.Credentials("ya29.x", quota_project_id="quota")
    headers = bearer_of(file_system(credentials)).headers
    assert headers == {"Authorization": "Bearer ya29.x", "X-Goog-User-Project": "quota"}


USER = {"type": "authorized_user", "client_id": "id", "client_secret": "secret", "refresh_token": "mine"}


def test_the_login_of_a_user_is_read_as_gcsfs_reads_it(tmp_path: Path) -> None:
    (tmp_path / "user.json").write_text(json.dumps(USER))
    for token in (USER, str(tmp_path / "user.json")):
        login = GoogleLogin(token=token)
        assert (login.credentials.refresh_token, login.why_anonymous) == ("mine", None)


def test_a_browser_login_that_gcsfs_keeps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Tokens()
    monkeypatch.setattr("gcsfs.credentials.GoogleCredentials.tokens", {("project", "read_only"): kept})
    monkeypatch.setattr(google.auth, "default", refused)
    assert GoogleLogin(project="project").credentials is kept
    assert GoogleLogin(project="project", token="cache").credentials is kept
    assert GoogleLogin(project="other").why_anonymous == "none found"
    with pytest.raises(DefaultCredentialsError):
        GoogleLogin(project="project", key_file="/named.json")


def refused(**_: Any) -> None:
    raise DefaultCredentialsError("none")


def test_equal_options_share_a_login_until_it_is_forgotten() -> None:
    logins, options = Logins(), {"token": "ya29.x", "endpoint_url": "https://a"}
    first = logins.of(options)
    assert logins.of({**options, "endpoint_url": "https://b"}) is first
    assert logins.of({**options, "skip_instance_cache": True}) is not first
    assert logins.of({"token": "ya29.y"}) is not first
    logins.forget(first)
    again = logins.of(options)
    assert again is not first
    for number in range(KEPT):
        logins.of({"token": f"ya29.{number}"})
    assert logins.of(options) is not again


def test_a_changed_environment_makes_a_new_login(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = Logins()
    first = logins.of({"token": "ya29.x"})
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "other")
    assert logins.of({"token": "ya29.x"}) is not first


def test_the_environments_proxy_is_not_for_a_session_that_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    session_kwargs = {"trust_env": False}
    assert only_of_aiohttp(session_kwargs, "https://storage.googleapis.com") is None
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert only_of_aiohttp(session_kwargs, "https://storage.googleapis.com") == "trust_env"
    assert only_of_aiohttp({**session_kwargs, "proxy": "http://other"}, "https://storage.googleapis.com") is None


def test_no_token_is_shown_by_repr() -> None:
    store = GcsStore("gs://b/k", {"token": "ya29.CANARY"})
    assert "CANARY" not in repr(store._client.bearer()) + repr(store)
