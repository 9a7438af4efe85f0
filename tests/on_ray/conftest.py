"""One cluster for the tests of a file."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import one_file

import streamer

if find_spec("ray") is not None and find_spec("ray.cluster_utils") is not None:  # a folder "ray" has no such module
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0"}

    import ray


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A head and two nodes, to which this process is connected."""
    from ray_nodes import Nodes

    nodes = Nodes(tmp_path_factory.mktemp("ray"))
    try:
        nodes.add()
        nodes.add()

        def wait_for_peers() -> None:
            """In each process of Ray: the machine may be busy."""
            from streamer.core.peers import line

            line.PATIENCE_S = 30.0

        environment = {"worker_process_setup_hook": wait_for_peers}
        ray.init(address=nodes.cluster.address, log_to_driver=False, runtime_env=environment)
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


@pytest.fixture
def _actors_end(nodes):
    yield
    streamer.ray.stop()


@pytest.fixture
def data():
    """One file of eight tensors, 8 MB."""
    return save({f"weight{number}": np.arange(250_000, dtype=np.float32) for number in range(8)})


@pytest.fixture
def server(data):
    """A web server that has it."""
    with one_file(data=data) as server:
        yield server
