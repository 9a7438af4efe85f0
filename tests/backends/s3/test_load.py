"""The public face over a real S3 server that checks signatures: whole loads, partial reads, and what bad input gets."""

from __future__ import annotations

import json
import threading
import time
import traceback

import numpy as np
import pytest
import torch
from comparison import assert_same
from safetensors.numpy import save_file
from servers.seaweedfs import Identity

import streamer
from streamer._check import check

pytestmark = pytest.mark.server


@pytest.fixture
def options(s3_server):
    return s3_server.storage_options()


@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda uri: uri + "/",
        lambda uri: uri.replace("s3://", "s3a://"),
        lambda uri: uri + "/model.safetensors.index.json",
        lambda uri: uri + "/*.safetensors",
        lambda uri: [f"{uri}/model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)],
        lambda uri: "simplecache::" + uri + "/*.safetensors",
    ],
    ids=["prefix", "slash", "s3a", "index", "glob", "list", "chained"],
)
def test_every_way_to_name_it_gives_equal_tensors(s3_checkpoint, reference, options, form, tmp_path):
    uri = form(s3_checkpoint)
    chained = isinstance(uri, str) and uri.startswith("simplecache")
    given = {"s3": options, "simplecache": {"cache_storage": str(tmp_path)}} if chained else options
    assert_same(streamer.load(uri, storage_options=given), reference)


def test_it_loads_over_tls_under_a_private_authority(s3_tls_server, checkpoint, reference):
    uri = s3_tls_server.upload_folder(checkpoint, "private", "tls")
    assert_same(streamer.load(uri, storage_options=s3_tls_server.storage_options()), reference)


def test_it_loads_anonymously_where_the_bucket_is_public(s3_server, checkpoint, reference):
    uri = s3_server.upload_folder(checkpoint, "public", "open")
    assert_same(streamer.load(uri, storage_options=s3_server.anonymous_options()), reference)


def test_credentials_and_endpoint_may_come_from_the_environment(s3_server, s3_checkpoint, reference, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    assert_same(streamer.load(s3_checkpoint, storage_options={"skip_instance_cache": True}), reference)


def test_a_secret_that_is_put_right_in_the_environment_counts_at_once(s3_server, s3_checkpoint, reference, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint_url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mistyped")
    with pytest.raises(streamer.CredentialsError):
        streamer.load(s3_checkpoint)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    assert_same(streamer.load(s3_checkpoint), reference)


def test_a_secret_that_is_put_right_in_the_users_file_counts_at_once(
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


def test_small_blocks_and_little_memory_change_nothing(s3_checkpoint, reference, options):
    tight = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=1 << 20, http_reactors=3, http_in_flight=2)
    with streamer.stream(s3_checkpoint, storage_options=options, options=tight) as stream:
        assert_same(dict(stream), reference)
    largest = max(tensor.nbytes for tensor in reference.values())
    assert stream.report.peak_held_bytes <= max(1 << 20, largest)


def test_opening_reads_headers_and_a_slice_reads_its_rows(s3_checkpoint, reference, options):
    name = max(reference, key=lambda key: reference[key].nbytes)
    few = streamer.Options(coalesce_gap_bytes=0)
    with streamer.open(s3_checkpoint, storage_options=options, options=few) as checkpoint:
        assert checkpoint.keys() == sorted(reference)
        assert torch.equal(checkpoint.get_slice(name)[3:5].view(torch.uint8), reference[name][3:5].view(torch.uint8))
    with streamer.stream(s3_checkpoint, names=name, storage_options=options, options=few) as stream:
        list(stream)
    assert stream.report.bytes_read == reference[name].nbytes


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


def test_an_object_replaced_between_header_and_data_is_noticed(s3_server, checkpoint, options):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    s3_server.put("private", "swap/x.safetensors", shard)
    opened = streamer.open("s3://private/swap/x.safetensors", storage_options=options)
    s3_server.put("private", "swap/x.safetensors", shard[:-8] + b"\0\1\2\3\4\5\6\7")
    with pytest.raises(streamer.ChangedError, match=r"swap/x\.safetensors"):
        opened.get_tensors()


def test_an_object_deleted_after_the_header_is_not_found(s3_server, checkpoint, options):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    s3_server.put("private", "gone/x.safetensors", shard)
    opened = streamer.open("s3://private/gone/x.safetensors", storage_options=options)
    s3_server.delete("private", "gone/x.safetensors")
    with pytest.raises(streamer.ObjectNotFoundError, match="NoSuchKey"):
        opened.get_tensors()


def test_an_index_that_names_a_missing_shard_says_which(s3_server, options):
    index = {"weight_map": {"a": "model-1.safetensors"}}
    s3_server.put("private", "partial/model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(streamer.ObjectNotFoundError, match=r"model-1\.safetensors"):
        streamer.load("s3://private/partial", storage_options=options)


def test_a_truncated_upload_is_refused(s3_server, checkpoint, options):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    s3_server.put("private", "cut/x.safetensors", shard[: len(shard) // 2])
    with pytest.raises(streamer.TruncatedError, match="cut/x"):
        streamer.load("s3://private/cut/x.safetensors", storage_options=options)


def wrong(server, **changes):
    return {**server.storage_options(), **changes}


@pytest.mark.parametrize(
    ("uri", "changes", "error"),
    [
        ("s3://private/models/nix", {}, streamer.ObjectNotFoundError),
        ("s3://private/models/nix.safetensors", {}, streamer.ObjectNotFoundError),
        ("s3://nosuchbucket/models", {}, streamer.ObjectNotFoundError),
        ("s3://private/models/small", {"secret": "wrongwrongwrong"}, streamer.CredentialsError),
        ("s3://private/models/small", {"key": "AKIDUNKNOWN"}, streamer.CredentialsError),
        ("s3://private/models/small", {"key": None, "secret": None, "anon": True}, streamer.AccessDeniedError),
        ("s3://private/models/small", {"endpoint_url": "http://127.0.0.1:9"}, streamer.ConnectError),
        ("s3://private/models/small", {"endpoint_url": "https://127.0.0.1:9"}, streamer.ConnectError),
        ("s3://private/models/small", {"client_kwargs": {"verify": False}}, streamer.OptionError),
    ],
)
def test_bad_input_gets_its_own_class_soon_and_without_a_secret(s3_server, s3_checkpoint, uri, changes, error):
    started = time.monotonic()
    given = wrong(s3_server, **changes)
    with pytest.raises(error) as caught:
        streamer.load(uri, storage_options=given)
    assert time.monotonic() - started < 20
    text = "".join(traceback.format_exception(caught.value))
    assert s3_server.secret_key not in text
    assert "wrongwrongwrong" not in text
    assert "X-Amz-Signature" not in text
    assert "private" in str(caught.value) or "nosuchbucket" in str(caught.value) or error is streamer.OptionError


def test_an_identity_that_may_not_read_the_bucket_is_denied(s3_server, s3_checkpoint):
    assert isinstance(s3_server.limited, Identity)
    with pytest.raises(streamer.AccessDeniedError):
        streamer.load(s3_checkpoint, storage_options=s3_server.storage_options(s3_server.limited))


def test_a_server_with_an_unknown_authority_is_a_tls_error(s3_tls_server):
    given = {**s3_tls_server.storage_options(), "client_kwargs": {}}
    with pytest.raises(streamer.TlsError, match=r"(?i)ca|certificate"):
        streamer.load("s3://private/tls", storage_options=given)


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
def test_a_ca_file_that_cannot_be_used_is_told_at_once_also_over_http_regression(
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
