"""Models of ModelScope: a stand-in for it, branches that move, logins and faults."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from modelscope_server import TOKEN, ModelScopeServer
from safetensors.numpy import save

import streamer
from streamer.plugins.contract import BackendContract

MODEL = "modelscope://org/llama"


def weights(value):
    return save({"a": np.full(50_000, value)})


@pytest.fixture
def server(monkeypatch):
    with ModelScopeServer() as server:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
        monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
        server.commit({"README.md": b"a model", "model.safetensors": weights(1)})
        yield server


def load(uri=MODEL, **options):
    return streamer.load(uri, framework="np", progress=False, **options)


class TestContract(BackendContract):
    folder_uri = f"{MODEL}/contract"
    keeps_versions = True
    secrets = (TOKEN, "SIGNED-APART")
    large_bytes = 1 << 60

    @pytest.fixture(autouse=True)
    def _on_a_server(self, server):
        self.storage_options, self.denied_options = {"token": TOKEN}, {"token": "another-token-of-the-tests"}
        self.server, server.large_bytes, server.signature = server, self.large_bytes, "SIGNED-APART"

    def put(self, name, data):
        self.server.commit({f"contract/{name}": data})

    def delete(self, name):
        self.server.commit({f"contract/{name}": None})


class TestContractOfLargeFiles(TestContract):
    large_bytes = 1


@pytest.mark.parametrize("large_bytes", [1, 1 << 60])
def test_models_revisions_and_paths_are_read(server, large_bytes):
    server.large_bytes = large_bytes
    commit = server.branches["master"]
    server.commit({"model.safetensors": weights(2), "vae/model.safetensors": weights(3)}, "feature/x")
    server.commit({"model.safetensors": weights(4)})
    for uri, value in (
        (MODEL, 4),
        (f"{MODEL}/", 4),
        (f"{MODEL}@master/model.safetensors", 4),
        (f"{MODEL}@{commit}", 1),
        (f"{MODEL}@feature%2Fx", 2),
        (f"{MODEL}@feature%2Fx/vae", 3),
    ):
        assert load(uri, verify="auto")["a"][0] == value
    with streamer.stream(MODEL, framework="np", progress=False) as stream:
        dict(stream)
    assert set(stream.report.readers) == {"http"}


@pytest.mark.parametrize("large_bytes", [1, 1 << 60])
def test_a_branch_that_moves_during_a_load_is_no_mixture(server, large_bytes):
    server.large_bytes = large_bytes
    server.commit({"other.safetensors": save({"b": np.full(50_000, 1)})})

    def script(handler):
        if "FilePath" in handler.query:
            server.script = lambda handler: None
            server.commit({"other.safetensors": save({"b": np.full(50_000, 2)}), "model.safetensors": weights(2)})

    server.script = script
    loaded = load()
    assert (loaded["a"][0], loaded["b"][0]) == (1, 1)
    assert load()["b"][0] == 2


def test_the_host_of_a_redirect_gets_no_token(server):
    server.large_bytes = 1
    load(verify="auto")
    assert server.logins == {None}


def test_a_signature_that_ends_during_a_load_is_renewed(server):
    server.large_bytes = 1
    with streamer.stream(MODEL, framework="np", progress=False) as stream:
        server.signature = "2"
        assert dict(stream)["a"][0] == 1


def test_wrong_bytes_are_found(server, caplog):
    def change(data):
        for each in data["Files"]:
            each["Sha256"] = "0" * 64

    server.change = change
    with pytest.raises(streamer.ChecksumError):
        load(verify="auto")
    assert "compared nothing" not in caplog.text  # the error says what was compared


def test_a_listing_without_digests_and_commits_is_read(server):
    def change(data):
        for each in data["Files"]:
            del each["Sha256"], each["Revision"]

    server.change = change
    assert load()["a"][0] == 1
    assert "FilePath=model.safetensors" in server.seen[-1]
    assert "Revision=master" in server.seen[-1]


def answering(status, body=b"", **headers):
    return lambda handler: handler.send(status, body, **headers) or True


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answering(200, b"<html>"), "not a listing"),
        (answering(200, b'{"Code": 10010, "Message": "no", "Success": false}'), "not a listing"),
        (answering(200, b'{"Code": 200, "Data": {"Files": [{"Path": "a", "Size": -1}]}}'), "not a listing"),
        (answering(200, b'{"Code": 200, "Data": {"Files": [{"Path": null, "Size": 1}]}}'), "not a listing"),
        (answering(200, b'{"Code": 200, "Data": {"Files": [{"Path": "a", "Size": true}]}}'), "not a listing"),
        (answering(200, b'{"Code": 200, "Data": {"TotalCount": 3, "Files": []}}'), "lacks files"),
        (answering(200, b'{"Code": 200, "Data": {"Files": [{"Path": "../a", "Size": 1}]}}'), "leads out of it"),
        (answering(500), "500"),
        (answering(302, Location="http://127.0.0.1:9/"), "302"),
    ],
)
def test_faults_of_the_server_are_errors(server, script, error):
    server.script = script
    with pytest.raises(streamer.StorageError, match=error) as caught:
        load()
    assert TOKEN not in str(caught.value)


def test_a_file_that_the_server_lacks_is_an_error(server):
    server.change = lambda data: data["Files"].append({"Path": "b.safetensors", "Type": "blob", "Size": 9})
    with pytest.raises(streamer.StorageError, match="its listing names 9"):
        load(f"{MODEL}/b.safetensors")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_login_of_this_storage_regression(server, status):
    """It named the options of web servers, which this storage refuses."""
    server.script = lambda handler: handler.place.endswith("/repo") and (handler.send(status) or True)
    with pytest.raises(streamer.AccessDeniedError, match="MODELSCOPE_API_TOKEN") as caught:
        load()
    assert "Bearer" not in str(caught.value)


def test_a_passing_fault_is_tried_again(server):
    faults = [429, 503]
    server.script = lambda handler: bool(faults) and (handler.send(faults.pop(), Retry_After="0") or True)
    assert load()["a"][0] == 1
    assert not faults


def test_a_model_without_files_is_no_checkpoint(server):
    server.commit({"README.md": None, "model.safetensors": None})
    with pytest.raises(streamer.ObjectNotFoundError):
        load()


def test_a_model_is_pulled(server, tmp_path):
    server.commit({"vae/a b%20c+d#e.json": b"{}"})
    command = [sys.executable, "-m", "streamer", "pull", MODEL, str(tmp_path / "llama")]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    assert load(tmp_path / "llama")["a"][0] == 1
    assert (tmp_path / "llama" / "vae" / "a b%20c+d#e.json").read_bytes() == b"{}"


def test_mistakes_are_named(server, monkeypatch):
    for uri in ("modelscope://org/nobody", f"{MODEL}@nobody"):
        with pytest.raises(streamer.ObjectNotFoundError, match="no such model or revision"):
            load(uri)
    for uri in (
        "modelscope://llama",
        "modelscope://datasets/org/name",
        f"{MODEL}/../b",
        f"{MODEL}@..",
        "modelscope://",
    ):
        with pytest.raises(streamer.UsageError, match="not the URL of a model"):
            load(uri)
    for options in ({"tokens": "x"}, {"token": 5}, {"verify": False}):
        with pytest.raises(streamer.OptionError):
            load(storage_options=options)
    with pytest.raises(streamer.CredentialsError, match="has characters that no token has"):
        load(storage_options={"token": "a\nb"})
    with pytest.raises(streamer.AccessDeniedError, match="MODELSCOPE_API_TOKEN") as caught:
        load(storage_options={"token": "wrong-token-of-the-tests"})
    assert "wrong-token" not in str(caught.value)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "https://user:password@host")
    with pytest.raises(streamer.UsageError, match="without a login"):
        load()


def test_the_endpoint_is_that_of_modelscopes_client(monkeypatch):
    """No request is sent."""
    for names, expected in (
        ({}, "https://modelscope.cn"),
        ({"MODELSCOPE_PREFER_AI_SITE": "true"}, "https://www.modelscope.ai"),
        ({"MODELSCOPE_DOMAIN": "mirror.example"}, "https://mirror.example"),
        ({"MODELSCOPE_DOMAIN": "mirror.example", "MODELSCOPE_ENDPOINT": "http://other/"}, "http://other"),
    ):
        for name in ("MODELSCOPE_PREFER_AI_SITE", "MODELSCOPE_DOMAIN", "MODELSCOPE_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        assert streamer.plugins.open_store(MODEL, {}).server == expected
