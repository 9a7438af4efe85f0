"""What a file system takes from elsewhere than its options, and when that has changed."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer.backends.login_state import login_state


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE", raising=False)


SEEN = (
    *("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPS_PROXY", "no_proxy"),
)


@each_row("name", SEEN)
def test_a_variable_that_is_set_or_changed_is_seen(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    before = login_state()
    monkeypatch.setenv(name, "one")
    one = login_state()
    monkeypatch.setenv(name, "two")
    assert len({before, one, login_state()}) == 3
    monkeypatch.delenv(name)
    assert login_state() == before


def test_other_variables_do_not_matter(monkeypatch):
    before = login_state()
    monkeypatch.setenv("PS1", "$ ")
    assert login_state() == before


def test_a_file_of_credentials_that_is_written_is_seen(tmp_path):
    before = login_state()
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]")
    written = login_state()
    (tmp_path / ".aws" / "credentials").write_text("[default]\naws_access_key_id = A")
    assert len({before, written, login_state()}) == 3


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_are_replaced_are_seen(tmp_path, monkeypatch, name):
    (tmp_path / "ca.pem").write_text("one")
    monkeypatch.setenv(name, str(tmp_path / "ca.pem"))
    before = login_state()
    (tmp_path / "ca.pem").write_text("another")
    assert login_state() != before


def test_a_login_state_holds_no_secret(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    assert "very secret" not in repr(login_state())
