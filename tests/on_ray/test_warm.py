"""``streamer.ray`` on a real cluster of Ray: several nodes on this machine, each with a cache of its own.

``make test-ray`` installs Ray beside this package, and runs them; elsewhere they are skipped.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")

import ray
from pages import blocks as blocks_of
from ray_nodes import LONG_S, actors, on_node, pids_of_actors, until
from servers.one_file import is_block, one_file, place_of

import streamer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_actors_end")]
SIZE = 8_000_000


def blocks(server) -> int:
    return sum(map(is_block, server.requests))


def sent(server) -> int:
    return sum(each.end - each.begin for each in server.requests if is_block(each))


def held_back(data: bytes, may_answer: threading.Event):
    """Return a server that sends no block until it may."""
    return one_file(lambda request, _: is_block(request) and may_answer.wait(LONG_S), data=data)


def test_a_load_on_each_node_reads_the_cache_that_warm_has_filled(nodes, server):
    uri, shown = place_of("http", server)[0], []
    report = streamer.ray.warm(uri, nodes=nodes.are_workers, progress=lambda *counts: shown.append(counts))
    assert {(each.node_id, each.outcome, each.read_bytes) for each in report.nodes} == {
        (node_id, "warm", SIZE) for node_id in nodes.folders
    }
    assert all([*folder.glob("v1/*/object.json")] for folder in nodes.folders.values())
    assert all(done <= total for done, total in shown)
    before = blocks(server)

    def load(uri: str) -> tuple[float, int]:
        import streamer

        with streamer.stream(uri, framework="np", options=streamer.ray.node_options(), progress=False) as tensors:
            dict(tensors)
        cached = tensors.report.cached_bytes
        return float(streamer.ray.load(uri, framework="np", progress=False)["weight7"][-1]), cached

    for node_id in nodes.folders:
        assert on_node(node_id, load, uri) == (249_999.0, SIZE)
    assert blocks(server) == before
    again = streamer.ray.warm(uri, nodes=[*nodes.folders], progress=False)
    assert [each.read_bytes for each in again.nodes] == [0, 0]


def test_each_byte_leaves_the_storage_once_if_the_nodes_serve_each_other(nodes, server):
    uri = place_of("http", server)[0]
    once = streamer.Options(prefer="egress")
    report = streamer.ray.warm(uri, nodes=nodes.are_workers, options=once, progress=False)
    assert sent(server) < 1.5 * SIZE  # by eight nodes, see test_eight_nodes.py
    assert [each.read_bytes for each in report.nodes] == [SIZE, SIZE]
    assert sum(each.peer_bytes for each in report.nodes) > SIZE / 2
    before, joined = sent(server), nodes.add()
    try:
        again = {each.node_id: each for each in streamer.ray.warm(uri, nodes=nodes.are_workers, progress=False).nodes}
    finally:
        nodes.kill(joined)
    assert (again[joined].read_bytes, again[joined].peer_bytes) == (SIZE, SIZE)
    assert sent(server) < before + 0.05 * SIZE  # the header


def test_a_node_that_joins_is_warmed_and_a_node_that_is_lost_is_named(nodes, data):
    lost, may_answer = nodes.add(), threading.Event()
    with held_back(data, may_answer) as server:
        uri = place_of("http", server)[0]
        with ThreadPoolExecutor() as pool:
            warming = pool.submit(streamer.ray.warm, uri, nodes=nodes.are_workers, progress=False)
            until(lambda: len(actors()) == 3)
            nodes.kill(lost)
            joined = nodes.add()
            until(lambda: f"cache-{joined}" in actors())
            may_answer.set()
            report = warming.result(LONG_S)
    outcomes = {each.node_id: each.outcome for each in report.nodes}
    assert outcomes == {**dict.fromkeys(nodes.folders, "warm"), lost: "lost"}
    assert [each.node_id for each in report.lost] == [lost]
    nodes.kill(joined)


def test_an_actor_whose_process_is_killed_is_asked_again(nodes, data):
    may_answer = threading.Event()
    with held_back(data, may_answer) as server:
        uri = place_of("http", server)[0]
        with ThreadPoolExecutor() as pool:
            warming = pool.submit(streamer.ray.warm, uri, nodes=[next(iter(nodes.folders))], progress=False)
            until(lambda: blocks(server))
            (pid,) = pids_of_actors()
            os.kill(pid, signal.SIGKILL)
            until(lambda: pids_of_actors() not in ([pid], []))
            may_answer.set()
            report = warming.result(LONG_S)
    assert [each.outcome for each in report.nodes] == ["warm"]


def test_what_each_node_was_refused_is_an_error_that_says_so(nodes, data):
    message = r"2 of 2 nodes could not be warmed; node .+: "
    with (
        one_file(lambda _, answer: answer.become(404), data=data) as server,
        pytest.raises(OSError, match=message) as caught,
    ):
        streamer.ray.warm(place_of("http", server)[0], nodes=nodes.are_workers, progress=False)
    assert isinstance(caught.value, streamer.StorageError)
    assert isinstance(caught.value.__cause__, streamer.ObjectNotFoundError)


def test_another_folder_than_that_of_the_running_actor_is_refused(nodes, server, tmp_path):
    uri = place_of("http", server)[0]
    streamer.ray.warm(uri, nodes=nodes.are_workers, progress=False)
    with pytest.raises(streamer.UsageError, match=r"streamer.ray.stop\(\) first"):
        streamer.ray.warm(uri, nodes=nodes.are_workers, cache_dir=tmp_path, progress=False)
    assert streamer.ray.stop() == 2
    report = streamer.ray.warm(uri, nodes=nodes.are_workers, cache_dir=tmp_path / "shared", progress=False)
    assert {each.outcome for each in report.nodes} == {"warm"}


def test_a_node_without_a_folder_and_no_node_at_all_are_errors(nodes, server):
    uri = place_of("http", server)[0]
    head = [each["NodeID"] for each in ray.nodes() if each["NodeID"] not in nodes.folders and each["Alive"]]
    with pytest.raises(streamer.UsageError, match="set STREAMER_CACHE_DIR on the nodes"):
        streamer.ray.warm(uri, nodes=head, progress=False)
    with pytest.raises(streamer.UsageError, match=r"Look at ray.nodes\(\)"):
        streamer.ray.warm(uri, nodes=lambda node: False, progress=False)


def test_a_load_without_actors_reads_from_the_storage(nodes, server):
    uri = place_of("http", server)[0]

    def options() -> object:
        import streamer

        return streamer.ray.node_options().cache_dir

    assert on_node(next(iter(nodes.folders)), options) is None
    assert float(streamer.ray.load(uri, framework="np", progress=False)["weight0"][1]) == 1.0
    chosen = streamer.Options(cache_dir="")
    assert streamer.ray.node_options(chosen) is chosen


def test_the_example_warms_and_loads_on_each_node(nodes, server, tmp_path, capsys):
    import ray_warm

    ray_warm.main(place_of("http", server)[0], str(tmp_path / "shared"))
    lines = capsys.readouterr().out.splitlines()
    assert sum("warm, " in each for each in lines) == 3
    assert sum(f"8 tensors, {SIZE} of {SIZE} bytes from the cache" in each for each in lines) == 3
    assert actors() == set()


def test_the_example_of_the_page_runs(nodes, server, tmp_path, capsys):
    (example,) = blocks_of("docs/integrations/ray.md")
    example = example.replace('ray.init(address="auto")', "").replace("/nvme/streamer", str(tmp_path / "shared"))
    exec(example.replace("s3://models/llama-3-8b", place_of("http", server)[0]), {})
    assert capsys.readouterr().out.count("bytes read") == 3
