"""A host with a dot at its end: the resolver sees the dot, and no server, proxy, certificate or signature does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers.one_file import FILES, one_file, place_of
from servers.private_names import missing_for_private_names, run_with_names
from servers.seaweedfs import SeaweedServer

pytestmark = pytest.mark.skipif(missing_for_private_names() is not None, reason=str(missing_for_private_names()))

LOAD = """
import json, sys, streamer
print(sorted(streamer.load(sys.argv[1], storage_options=json.loads(sys.argv[2]), framework="np", progress=False)))
"""
SAVE_AND_LOAD = """
import json, sys, numpy, streamer
uri, options = sys.argv[1], json.loads(sys.argv[2])
tensors = {"a": numpy.ones(5 << 20, "f4"), "b": numpy.zeros(5)}
streamer.save(tensors, uri, storage_options=options, max_shard_bytes="20MB", progress=False)
loaded = streamer.load(uri, storage_options=options, framework="np", progress=False)
assert all(numpy.array_equal(loaded[name], tensors[name]) for name in tensors)
"""


@pytest.mark.parametrize("more", [{}, {"config_kwargs": {"user_agent_extra": "x"}}])
def test_s3_accepts_the_signatures_for_a_dotted_host_regression(
    s3_server: SeaweedServer, more: dict[str, Any], tmp_path: Path
) -> None:
    options = json.dumps(s3_server.storage_options() | more).replace("127.0.0.1", "store.test.")
    uri = f"s3://private/dot-{tmp_path.name}"
    done = run_with_names(tmp_path, SAVE_AND_LOAD, uri, options, hosts="127.0.0.1 store.test. store.test\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("storage", FILES)
def test_every_request_names_the_host_without_its_dot_regression(storage: str, tmp_path: Path) -> None:
    with one_file() as server:
        uri, options = (each.replace("127.0.0.1", "store.test.") for each in map(json.dumps, place_of(storage, server)))
        done = run_with_names(tmp_path, LOAD, json.loads(uri), options, hosts="127.0.0.1 store.test. store.test\n")
        assert done.returncode == 0, done.stderr
        assert {each.headers["host"] for each in server.requests} == {f"store.test:{server.port}"}
