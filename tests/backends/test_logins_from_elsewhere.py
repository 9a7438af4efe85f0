"""Logins and names as users of other software reported them; each test names the report."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from servers.hub import HubServer
from servers.scripted_http import ScriptedServer

import streamer


def same(got, reference):
    assert got.keys() == reference.keys()
    assert all(torch.equal(got[name], reference[name]) for name in reference)


@pytest.mark.parametrize(("token", "sent"), [("hf_x\n", "Bearer hf_x"), ("", None), (" \n", None)])
def test_a_token_of_a_file_or_form_is_cleaned_regression(token, sent):
    """mave5/podalize#8 (a line end), sciknoworg/OntoLearner#345 (a blank token)."""
    with ScriptedServer(b"", lambda request, answer: answer.become(404)) as server:
        options = {"endpoint": f"http://127.0.0.1:{server.port}", "token": token}
        with pytest.raises(streamer.StreamerError):
            streamer.load("hf://owner/model", storage_options=options)
        assert {each.headers.get("authorization") for each in server.requests} == {sent}


def test_a_blank_token_reads_a_public_model_regression(checkpoint, reference):
    with HubServer() as hub:
        hub.upload_folder(checkpoint, "owner/public")
        same(streamer.load("hf://owner/public", storage_options={"endpoint": hub.url, "token": ""}), reference)


def test_a_key_of_the_environment_does_not_replace_the_options(azure_server, azure_checkpoint, reference, monkeypatch):
    """treeverse/dvc#10246."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not of base64!")
    same(streamer.load(azure_checkpoint, storage_options=azure_server.storage_options()), reference)


def test_the_variables_of_fsspec_name_endpoint_and_keys(s3_server, s3_checkpoint, reference):
    """fsspec/s3fs#975; fsspec reads them when it is imported."""
    options = s3_server.storage_options()
    named = {"FSSPEC_S3_ENDPOINT_URL": options["endpoint_url"], "FSSPEC_S3_key": options["key"]}
    program = f"import streamer; print(len(streamer.load({s3_checkpoint!r}, framework='np')))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **named, "FSSPEC_S3_secret": options["secret"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split() == [str(len(reference))], run.stderr


@pytest.mark.parametrize("folder", ["a#b", "a%20b", "a+b", "a b", "a'b"])
def test_names_with_marks_of_urls_are_loaded(s3_server, checkpoint, reference, folder):
    """fsspec/gcsfs#270 and #447, for S3, where these marks mean nothing."""
    url = s3_server.upload_folder(checkpoint, "private", f"models/{folder}")
    same(streamer.load(url, storage_options=s3_server.storage_options()), reference)


def test_half_a_login_names_both_variables(s3_server, monkeypatch):
    """run-ai/runai-model-streamer#154: AWS_SECRET_ACCES_KEY."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCES_KEY", "S3CR3T")
    endpoint = s3_server.storage_options()["endpoint_url"]
    with pytest.raises(streamer.StreamerError, match=r"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as caught:
        streamer.load("s3://private/nothing", storage_options={"endpoint_url": endpoint})
    assert "S3CR3T" not in str(caught.value)
