"""Models of an MLflow registry: a stand-in for its server, aliases that move, logins and faults."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer

import numpy as np
import pytest
from registry_server import POLL_S, Handler
from safetensors.numpy import save, save_file

import streamer
from streamer.plugins.contract import BackendContract

TOKEN = "token-of-the-tests-of-mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


class Tracking:
    def __init__(self):
        self.files, self.places, self.aliases, self.seen = {}, {}, {}, []
        self.script = lambda handler: None
        kind = type("_", (Handler,), {"answer": staticmethod(self.answer)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler):
        self.seen.append(handler.path)
        if self.script(handler):
            return None
        if handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            return handler.send(401)
        query, place = handler.query, handler.place
        if place.endswith("/registered-models/alias"):
            version = self.aliases.get(query["alias"])
            if version is None:
                return handler.send(400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "alias not found."}')
            return handler.send(200, json.dumps({"model_version": {"version": version}}).encode())
        if place.endswith("/get-download-uri"):
            found = self.places.get(query["version"])
            return handler.send(200 if found else 404, json.dumps({"artifact_uri": found}).encode())
        if place == ARTIFACTS:
            below = [name[len(query["path"]) + 1 :] for name in self.files if name.startswith(query["path"] + "/")]
            files = {name.partition("/")[0]: "/" in name for name in below}
            listed = [{"path": name, "is_dir": is_folder} for name, is_folder in files.items()]
            return handler.send(200, json.dumps({"files": listed}).encode())
        data = self.files.get(place[len(ARTIFACTS) + 1 :])
        return handler.send(404) if data is None else handler.send_range(data[0], ETag=data[1])

    def put(self, name, data):
        self.files[name] = data, f'"{len(self.seen)}-{hash(data)}"'


@pytest.fixture
def server(monkeypatch):
    with Tracking() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
        for version in "12":
            server.put(f"{version}/a/model.safetensors", save({"a": np.full(50_000, int(version))}))
            server.places[version] = f"mlflow-artifacts:/{version}/a"
        server.aliases["champion"] = "1"
        yield server


def load(uri):
    return streamer.load(uri, framework="np", progress=False)


class TestContract(BackendContract):
    folder_uri = "models:/llama/1/contract"
    secrets = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _on_a_server(self, server):
        self.server = server

    def put(self, name, data):
        self.server.put(f"1/a/contract/{name}", data)

    def delete(self, name):
        self.server.files.pop(f"1/a/contract/{name}", None)


def test_versions_and_aliases_are_read(server):
    for uri in ("models:/llama@champion", "models:/llama/1", "models:/llama/1/model.safetensors"):
        assert load(uri)["a"][0] == 1


def test_an_alias_that_moves_during_a_load_is_no_mixture(server):
    server.put("1/a/other.safetensors", save({"b": np.ones(3)}))

    def script(handler):
        if handler.place.endswith("get-download-uri"):
            server.aliases["champion"] = "2"

    server.script = script
    loaded = load("models:/llama@champion")
    assert loaded["a"][0] == 1
    assert "b" in loaded
    assert load("models:/llama@champion")["a"][0] == 2


def test_artifacts_elsewhere_are_read_by_their_storage(server, tmp_path):
    save_file({"a": np.arange(5)}, tmp_path / "model.safetensors")
    server.places["3"] = f"file://{tmp_path}"
    assert np.array_equal(load("models:/llama/3")["a"], np.arange(5))


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (lambda handler: handler.send(200, b"<html>") or True, "not that of a tracking server"),
        (lambda handler: handler.send(500) or True, "500.*does not wait"),
        (lambda handler: handler.send(302, Location="http://127.0.0.1:9/") or True, "302"),
    ],
)
def test_faults_of_the_server_are_errors(server, script, error):
    server.script = script
    with pytest.raises(streamer.StorageError, match=error) as caught:
        load("models:/llama@champion")
    assert TOKEN not in str(caught.value)


def test_a_passing_fault_is_tried_again(server):
    faults = [429, 503]
    server.script = lambda handler: bool(faults) and (handler.send(faults.pop(), Retry_After="0") or True)
    assert load("models:/llama@champion")["a"][0] == 1
    assert not faults


def test_the_host_of_a_redirect_gets_no_token(server):
    logins = []
    data = save({"a": np.arange(5)})

    def elsewhere(handler):
        logins.append(handler.headers.get("Authorization"))
        handler.send_range(data, ETag='"1"')
        return True

    with Tracking() as other:
        other.script = elsewhere
        server.script = lambda handler: (
            handler.place.endswith(".safetensors")
            and (handler.send(307, Location=f"{other.url.replace('127.0.0.1', 'localhost')}/signed") or True)
        )
        assert np.array_equal(load("models:/llama/1/model.safetensors")["a"], np.arange(5))
    assert set(logins) == {None}


def test_a_model_is_pulled(server, tmp_path):
    command = [sys.executable, "-m", "streamer", "pull", "models:/llama@champion", str(tmp_path / "llama")]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    assert load(tmp_path / "llama")["a"][0] == 1


def test_mistakes_are_named(server, monkeypatch):
    for uri in ("models:/llama@nobody", "models:/llama/9"):
        with pytest.raises(streamer.ObjectNotFoundError, match="no such model or version"):
            load(uri)
    with pytest.raises(streamer.UsageError, match="names no version"):
        load("models:/llama/latest")
    server.places["4"] = "models:/llama@champion"
    with pytest.raises(streamer.UsageError, match="kind models"):
        load("models:/llama/4")
    with pytest.raises(streamer.ObjectNotFoundError, match="Check the path in the artifacts"):
        load("models:/llama/1/nobody")
    for token in ("größe", "a\nb"):
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
        with pytest.raises(streamer.CredentialsError, match="has characters that no token has"):
            load("models:/llama/1")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", f"{TOKEN}\n")  # as of a file
    assert load("models:/llama/1")["a"][0] == 1
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "wrong-token-of-the-tests")
    with pytest.raises(streamer.CredentialsError) as caught:
        load("models:/llama/1")
    assert "wrong-token" not in str(caught.value)


@pytest.mark.parametrize("refused", ["/get-download-uri", ".safetensors"])
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_login_of_this_storage_regression(server, refused, status):
    """It named the options of web servers, which this storage refuses."""
    server.script = lambda handler: handler.place.endswith(refused) and (handler.send(status) or True)
    with pytest.raises(streamer.AccessDeniedError, match="MLFLOW_TRACKING_TOKEN") as caught:
        load("models:/llama/1/model.safetensors")
    assert "storage_options" not in str(caught.value)


def test_a_folder_on_the_disk_is_read_by_its_path(tmp_path, monkeypatch):
    """Without a plug-in for its scheme, a path needs no dot."""
    monkeypatch.chdir(tmp_path)
    for folder, path in (("models:", "./models:"), ("nobody:", "nobody:")):
        (tmp_path / folder).mkdir()
        save_file({"a": np.arange(5)}, tmp_path / folder / "x.safetensors")
        assert np.array_equal(load(f"{path}/x.safetensors")["a"], np.arange(5))
