"""Eight nodes of Ray, on one machine: each byte leaves the storage about once, whoever reads it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import is_block, one_file, place_of

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")

import ray
from ray_nodes import LONG_S, actors, on_node, until

import streamer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_actors_end")]
NODES = 8
TENSORS = {f"layer{number:02}": np.arange(number, number + 250_000, dtype=np.float32) for number in range(32)}
DATA = save(TENSORS)
ONCE = streamer.Options(prefer="egress")  # however slow the nodes are beside the storage
SUM = sum(float(each[-1]) for each in TENSORS.values())


@pytest.fixture(scope="module")
def eight(nodes):
    """The cluster with eight nodes."""
    while len(nodes.folders) < NODES:
        nodes.add()
    return nodes


@pytest.fixture
def storage():
    """A web server that is slow, so that all nodes begin before one of them has read everything."""

    def slowly(request, _):
        if is_block(request):
            time.sleep(0.2)

    with one_file(slowly, data=DATA) as server:
        yield server


def given(storage) -> float:
    """How often the storage gave the file."""
    return sum(each.end - each.begin for each in storage.requests if is_block(each)) / len(DATA)


def test_a_call_of_warm_reads_about_once(eight, storage):
    report = streamer.ray.warm(place_of("http", storage)[0], nodes=eight.are_workers, options=ONCE, progress=False)
    assert [each.outcome for each in report.nodes] == ["warm"] * NODES
    assert given(storage) < 1.5
    assert sum(each.peer_bytes for each in report.nodes) > (NODES - 2) * len(DATA)


def test_loads_on_cold_nodes_read_about_once_and_a_warm_node_gives_to_one_that_is_warmed_alone(eight, storage):
    def load(uri: str) -> tuple[float, dict[str, int]]:
        import streamer

        options = streamer.ray.node_options(streamer.Options(prefer="egress"))
        with streamer.stream(uri, framework="np", options=options, progress=False) as stream:
            total = sum(float(tensor[-1]) for _, tensor in stream)
        return total, dict(stream.report.peer_bytes)

    with one_file(data=save({"small": np.zeros(4, np.float32)})) as small:  # for the actors
        streamer.ray.warm(place_of("http", small)[0], nodes=eight.are_workers, progress=False)
    uri = place_of("http", storage)[0]
    with ThreadPoolExecutor(NODES) as pool:
        loaded = [*pool.map(lambda node_id: on_node(node_id, load, uri), eight.folders)]
    assert [total for total, _ in loaded] == [SUM] * NODES
    assert given(storage) < 2
    assert sum(sum(each.values()) for _, each in loaded) > (NODES - 3) * len(DATA)
    before, joined = given(storage), eight.add()
    try:
        (report,) = streamer.ray.warm(uri, nodes=[joined], options=ONCE, progress=False).nodes
    finally:
        eight.kill(joined)
    assert report.peer_bytes == report.read_bytes == sum(each.nbytes for each in TENSORS.values())
    assert given(storage) < before + 0.05


def test_what_a_lost_node_was_to_read_another_one_reads(eight):
    begun, may_go_on = threading.Event(), threading.Event()

    def held_back(request, _):
        if is_block(request):
            begun.set()
            may_go_on.wait(LONG_S)

    lost = eight.add()
    with one_file(held_back, data=DATA) as storage, ThreadPoolExecutor() as pool:
        warming = pool.submit(streamer.ray.warm, place_of("http", storage)[0], nodes=eight.are_workers, progress=False)
        until(begun.is_set)
        until(lambda: f"cache-{lost}" in actors())
        eight.kill(lost)
        until(lambda: lost not in {each["NodeID"] for each in ray.nodes() if each["Alive"]})
        may_go_on.set()
        outcomes = [each.outcome for each in warming.result(LONG_S).nodes]
        assert (outcomes.count("warm"), outcomes.count("lost")) == (NODES, 1)
