"""The head of a cluster ends and comes back; the process of Ray on a node ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")

from ray_nodes import on_node
from servers.one_file import one_file, place_of

import streamer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TESTS = Path(__file__).parents[1]
SIZE = 8_000_000


def test_while_the_head_is_away_loads_use_what_they_knew_and_warm_works_when_it_is_back(data, tmp_path):
    with one_file(data=data) as first, one_file(data=data) as second, one_file(data=data) as third:
        uris = [place_of("http", each)[0] for each in (first, second, third)]
        kept = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "state")}
        environment = {**os.environ, **kept, "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
        command = [sys.executable, TESTS / "ray_head.py", tmp_path, *uris]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["loads"] == [[SIZE, SIZE, 0], [SIZE, SIZE, 0], [SIZE, 0, 0], [SIZE, SIZE, 0]]
    assert said["outcomes"] == ["warm", "warm"]


@pytest.mark.usefixtures("_actors_end")
def test_a_node_whose_raylet_ends_is_lost_to_warm_and_costs_the_loads_of_others_nothing(nodes, server):
    lost, uri = nodes.add(), place_of("http", server)[0]
    streamer.ray.warm(uri, nodes=nodes.are_workers, progress=False)
    nodes.lose_raylet(lost)

    def load(uri: str) -> int:
        import streamer

        with streamer.stream(uri, framework="np", options=streamer.ray.node_options(), progress=False) as tensors:
            return sum(tensor.nbytes for _, tensor in tensors)

    other = save({f"weight{number}": np.ones(250_000, dtype=np.float32) for number in range(8)})
    with one_file(data=other) as storage:  # the list of peers still has the node
        uris = [uri, place_of("http", storage)[0]]
        assert [on_node(node_id, load, each) for node_id in nodes.folders for each in uris] == [SIZE] * 4
        report = streamer.ray.warm(uris[1], progress=False, nodes=nodes.are_workers)
    assert {each.node_id for each in report.nodes if each.outcome == "warm"} == {*nodes.folders}
