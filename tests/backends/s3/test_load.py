"""The public face over a real S3 server that checks signatures: whole loads, partial reads, and what bad input gets."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from comparison import assert_same
from safetensors.numpy import save_file
from servers.seaweedfs import Identity

import streamer
from streamer._check import check

pytestmark = pytest.mark.server


@pytest.fixture
def options(s3_server):
    return s3_server.storage_options()


def test_it_loads_over_tls_under_a_private_authority(s3_tls_server, checkpoint, reference):
    uri = s3_tls_server.upload_folder(checkpoint, "private", "tls")
    assert_same(streamer.load(uri, storage_options=s3_tls_server.storage_options()), reference)


def test_credentials_and_endpoint_may_come_from_the_environment(s3_server, s3_checkpoint, reference, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    assert_same(streamer.load(s3_checkpoint, storage_options={"skip_instance_cache": True}), reference)


def test_a_corrected_secret_in_the_environment_is_used_at_once(s3_server, s3_checkpoint, reference, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mistyped")
    with pytest.raises(streamer.CredentialsError):
        streamer.load(s3_checkpoint)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    assert_same(streamer.load(s3_checkpoint), reference)


def test_a_corrected_secret_in_the_users_file_is_used_at_once(
    s3_server, s3_checkpoint, reference, monkeypatch, tmp_path
):
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    profile = f"[default]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = "
    file.write_text(f"{profile}mistyped\n")
    with pytest.raises(streamer.CredentialsError):
        streamer.load(s3_checkpoint)
    file.write_text(f"{profile}{s3_server.secret_key}\n")
    assert_same(streamer.load(s3_checkpoint), reference)


def test_two_servers_are_read_in_one_process_at_once(s3_server, s3_tls_server, s3_checkpoint, checkpoint, reference):
    other = s3_tls_server.upload_folder(checkpoint, "private", "other")
    found = {}

    def load(name, uri, given):
        found[name] = streamer.load(uri, storage_options=given)

    threads = [
        threading.Thread(target=load, args=("plain", s3_checkpoint, s3_server.storage_options())),
        threading.Thread(target=load, args=("tls", other, s3_tls_server.storage_options())),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(found["plain"], reference)
    assert_same(found["tls"], reference)


def test_a_list_may_mix_storages(s3_checkpoint, checkpoint, reference, options):
    uris = [f"{s3_checkpoint}/model-0000{i}-of-00004.safetensors" for i in (1, 3)]
    paths = [checkpoint / f"model-0000{i}-of-00004.safetensors" for i in (2, 4)]
    assert_same(streamer.load([*uris, *paths], storage_options=options, options=None), reference)


def test_an_identity_that_may_not_read_the_bucket_is_denied(s3_server, s3_checkpoint):
    assert isinstance(s3_server.limited, Identity)
    with pytest.raises(streamer.AccessDeniedError):
        streamer.load(s3_checkpoint, storage_options=s3_server.storage_options(s3_server.limited))


@pytest.mark.parametrize("more", [{}, {"config_kwargs": {"connect_timeout": 5}}], ids=["plain", "option of botocore"])
@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_an_authority_that_the_environment_names_is_trusted(s3_tls_server, tmp_path, monkeypatch, variable, more):
    save_file({"a": np.arange(1000, dtype=np.float32)}, tmp_path / "model.safetensors")
    url = s3_tls_server.upload_folder(tmp_path, "private", "of-environment")
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, s3_tls_server.ca_file)
    given = {**s3_tls_server.storage_options(), "client_kwargs": {}, **more}
    loaded = streamer.load(url, framework="np", storage_options=given)
    assert loaded["a"].tolist() == list(range(1000))


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_ca_file_counts_from_the_next_load_on_regression(s3_checkpoint, options, tmp_path, monkeypatch, variable):
    of_botocore = {**options, "config_kwargs": {"connect_timeout": 5}}
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    streamer.load(s3_checkpoint, storage_options=of_botocore)
    monkeypatch.setenv(variable, str(tmp_path / "missing.pem"))
    with pytest.raises(streamer.OptionError, match=r"certificates to trust .*missing\.pem"):
        streamer.load(s3_checkpoint, storage_options=of_botocore)


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "a profile's ca_bundle"])
@pytest.mark.parametrize("content", [None, "no certificate"])
@pytest.mark.parametrize("call", [streamer.load, check])
def test_an_unusable_ca_file_is_reported_at_once_also_over_http_regression(
    s3_checkpoint, options, tmp_path, monkeypatch, variable, content, call
):
    ca_file = tmp_path / "mistaken.pem"
    if content is not None:
        ca_file.write_text(content)
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if variable.isupper():
        monkeypatch.setenv(variable, str(ca_file))
    else:
        (tmp_path / "config").write_text(f"[default]\nca_bundle = {ca_file}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    began = time.monotonic()
    with pytest.raises(streamer.OptionError, match=r"certificates to trust .*mistaken\.pem"):
        call(s3_checkpoint, storage_options=options)
    assert time.monotonic() - began < 10
