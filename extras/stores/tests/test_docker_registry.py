"""The registry of Docker (Debian's docker-registry) over a socket: its own uploads, ranges and logins."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
from registry_server import PASSWORD, USER

import streamer
from streamer.plugins.contract import BackendContract

HASH = "$2b$04$5sKhQhpXT6/36rYFug1h8uOq/1RasAchusq4gy7lej79HyoXX85hK"  # by bcrypt, of the password
CONFIG = """
version: 0.1
log: {{level: info, formatter: text, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}
http: {{addr: "127.0.0.1:0"}}
"""
LOGIN = {"username": USER, "password": PASSWORD}
PROGRAM = shutil.which("docker-registry")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="docker-registry is not installed")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    (folder / "htpasswd").write_text(f"{USER}:{HASH}\n")
    (folder / "config.yml").write_text(CONFIG.format(folder=folder))
    command = [PROGRAM, "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        try:
            lines = (re.search(rb"listening on (127\.0\.0\.1:\d+)", line) for line in server.stderr)
            address = next(found[1].decode() for found in lines if found)
            rest = threading.Thread(target=server.stderr.read)  # a full pipe would stop it
            rest.start()
            yield address
        finally:
            server.kill()
            server.wait()
            rest.join()


class TestDockerRegistry(BackendContract):
    keeps_versions = True
    storage_options = LOGIN
    secrets = (PASSWORD,)

    @pytest.fixture(autouse=True)
    def _on_a_server(self, host, request):
        self.denied_options = {**LOGIN, "password": "another password"}
        self.folder_uri = f"oci://{host}/contract:{abs(hash(request.node.nodeid))}"
        self.put("README.md", b"the tag is made by its first file")

    def store(self):
        return streamer.plugins.open_store(self.folder_uri, LOGIN)

    def put(self, name, data):
        store = self.store()
        store.write(f"{store.root}/{name}", data)

    def delete(self, name):
        store = self.store()
        store.remove(f"{store.root}/{name}")


def test_a_checkpoint_is_saved_verified_and_replaced(host):
    uri, how = f"oci://{host}/models/llama:v1", {"storage_options": LOGIN, "progress": False}
    for number in range(2):
        tensors = {f"{name}": np.full(100_000 + number, number, dtype=np.float32) for name in "abc"}
        streamer.save(tensors, uri, max_shard_bytes=500_000, overwrite=bool(number), **how)
        loaded = streamer.load(uri, framework="np", verify="auto", **how)
        assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
