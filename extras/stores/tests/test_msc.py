"""Profiles of Multi-Storage Client: what they become, and loads through them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from streamer_stores import msc

import streamer

SECRET = "secret-key-of-the-profile"
S3 = {
    "storage_provider": {
        "type": "s3",
        "options": {"base_path": "bucket/models", "endpoint_url": "http://127.0.0.1:9", "region_name": "eu-west-1"},
    },
    "credentials_provider": {"type": "S3Credentials", "options": {"access_key": "AKID", "secret_key": "${MSC_SECRET}"}},
}


@pytest.fixture
def configured(tmp_path, monkeypatch):
    def write(profiles, name="config.json"):
        path = tmp_path / name
        path.write_text(json.dumps({"profiles": profiles}))  # JSON is YAML, too
        monkeypatch.setenv("MSC_CONFIG", str(path))
        return path

    monkeypatch.setenv("MSC_SECRET", SECRET)
    return write


def load(uri, **options):
    return streamer.load(uri, framework="np", progress=False, storage_options=options)


def of_file(folder, **more):
    return {"storage_provider": {"type": "file", "options": {"base_path": str(folder)}}, **more}


@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_a_profile_of_files_and_the_default_one_are_read_natively(configured, tmp_path, name):
    (tmp_path / "llama").mkdir()
    save_file({"a": np.arange(5)}, tmp_path / "llama/model.safetensors")
    configured({"disk": of_file(tmp_path)}, name)
    for uri in ("msc://disk/llama", "msc://disk/llama/model.safetensors", f"msc://default{tmp_path}/llama"):
        assert np.array_equal(load(uri)["a"], np.arange(5))


def test_a_profile_of_s3_becomes_its_url_and_options(configured):
    configured({"store": S3})
    url, options = msc._place_of("store", "llama/a.safetensors", "msc://store")
    assert url == "s3://bucket/models/llama/a.safetensors"
    assert options == {
        "endpoint_url": "http://127.0.0.1:9",
        "client_kwargs": {"region_name": "eu-west-1"},
        "key": "AKID",
        "secret": SECRET,
    }


@pytest.mark.parametrize(
    ("kind", "options", "login", "url", "made"),
    [
        ("gcs", {}, ("GoogleServiceAccountCredentialsProvider", {"file": "/k.json"}), "gs://b/x", {"token": "/k.json"}),
        ("azure", {"endpoint_url": "https://acme.blob.core.windows.net"}, None, "az://b/x",
         {"account_name": "acme", "account_host": "acme.blob.core.windows.net"}),
        ("azure", {}, ("AzureCredentials", {"connection": "Name=a"}), "az://b/x", {"connection_string": "Name=a"}),
        ("s8k", {"profile_name": "team"}, None, "s3://b/x", {"profile": "team"}),
        ("s3", {"signature_version": "UNSIGNED"}, None, "s3://b/x", {"anon": True}),
        ("s3", {"connect_timeout": 3, "retries": {}}, None, "s3://b/x", {"config_kwargs": {"connect_timeout": 3}}),
    ],
)  # fmt: skip
def test_each_kind_of_profile_is_translated(configured, kind, options, login, url, made):
    profile = {"storage_provider": {"type": kind, "options": {"base_path": "b", **options}}}
    if login:
        profile["credentials_provider"] = {"type": login[0], "options": login[1]}
    configured({"store": profile})
    assert msc._place_of("store", "x", "msc://store/x") == (url, made)


@pytest.mark.parametrize(
    ("profile", "named"),
    [
        ({"storage_provider": {"type": "ais", "options": {"base_path": "b"}}}, "a storage of type ais"),
        ({"storage_provider": {"type": "s3", "options": {"base_path": "b", "new": 1}}}, "the setting new"),
        ({**S3, "credentials_provider": {"type": "mine.Provider"}}, "credentials of type mine.Provider"),
        ({**S3, "metadata_provider": {"type": "manifest"}}, "metadata_provider"),
    ],
)
def test_what_cannot_be_kept_is_never_left_out_in_silence(configured, profile, named):
    configured({"store": profile})
    with pytest.raises(streamer.UsageError, match=f"has {named}.*Install multi-storage-client"):
        load("msc://store/x")


def test_mistakes_are_named(configured, tmp_path, monkeypatch):
    path = configured({"store": S3})
    with pytest.raises(streamer.UsageError, match=r"no profile 'stor'.*profiles: store"):
        load("msc://stor/x")
    with pytest.raises(streamer.UsageError, match="leads out"):
        load("msc://default/a/../b")
    with pytest.raises(streamer.OptionError):
        load("msc://store/x", key="AKID")
    monkeypatch.delenv("MSC_SECRET")
    with pytest.raises(streamer.UsageError, match="needs the variable MSC_SECRET"):
        load("msc://store/x")
    path.write_text("{")
    with pytest.raises(streamer.UsageError, match="cannot be read"):
        load("msc://store/x")
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "nobody.yaml"))
    with pytest.raises(streamer.UsageError, match="No file with profiles was found"):
        load("msc://store/x")


def test_the_file_is_found_where_the_client_looks(tmp_path, monkeypatch):
    monkeypatch.delenv("MSC_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for place in (".config/msc/config.yaml", ".msc_config.yaml", "xdg/msc/config.json"):  # the later before the earlier
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"profiles": {"a": of_file(place)}}))
        assert msc._place_of("a", "x", "msc://a/x") == (f"{place}/x", {})
