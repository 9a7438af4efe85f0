"""``streamer.ray.copy`` to a real S3: the nodes send the shards, the index comes last, and a second call goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")

from ray_nodes import LONG_S, through, until
from servers.forwarding import ForwardingProxy

import streamer

pytestmark = pytest.mark.slow
SHARDS = 6
SUFFIX = f"-of-{SHARDS:05}.safetensors"


@pytest.fixture
def model(tmp_path):
    """Six shards of 400 kB, their index, and another file."""
    tensors = {f"weight{number}": np.full(100_000, number, "f4") for number in range(SHARDS)}
    streamer.save(tensors, tmp_path / "model", max_shard_bytes=400_000)
    (tmp_path / "model/config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def place(s3_server, tmp_path):
    """Where the copy goes, and the storage options for it."""
    return f"s3://private/ray-{tmp_path.name}", s3_server.storage_options()


def sent(proxy):
    return [path for method, path in proxy.requests if method == "PUT"]


def loads(uri, options):
    found = streamer.load(uri, framework="np", storage_options=options, verify="manifest")
    return sorted(float(tensor[-1]) for tensor in found.values()) == [float(number) for number in range(SHARDS)]


def test_the_nodes_send_the_shards_and_the_index_comes_last(nodes, s3_server, model, place):
    uri, options = place
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:
        report = streamer.ray.copy(model, uri, target_options=through(proxy, options))
        shards = [path for path in sent(proxy) if SUFFIX in path]
        assert len(shards) == SHARDS
        assert "model.safetensors.index.json" in sent(proxy)[-1]
        assert report.files.sent_bytes == report.files.bytes
        assert sum(report.nodes.values()) >= SHARDS * 400_000
        before = len(sent(proxy))
        again = streamer.ray.copy(model, uri, target_options=through(proxy, options))
        assert len(sent(proxy)) == before
        assert (again.files.sent_bytes, again.files.kept_files, again.nodes) == (0, again.files.files, {})
    assert loads(uri, options)


def test_a_file_that_a_node_cannot_send_is_an_error_that_names_both_and_a_second_call_goes_on(
    nodes, s3_server, model, place
):
    uri, options = place

    def refusing(method, path):
        return (403, b"<Error><Code>AccessDenied</Code></Error>") if method == "PUT" and "00003-of" in path else None

    with ForwardingProxy(s3_server.port, refusing) as proxy:
        with pytest.raises(streamer.StorageError, match=r"node .+ could not copy '?model-00003-of") as caught:
            streamer.ray.copy(model, uri, target_options=through(proxy, options))
        assert isinstance(caught.value.__cause__, streamer.AccessDeniedError)
        assert not [path for path in sent(proxy) if "index.json" in path]
    assert streamer.ray.copy(model, uri, target_options=options).files.kept_files >= 1
    assert loads(uri, options)


def test_what_a_lost_node_was_to_send_is_sent_by_another(nodes, s3_server, model, place):
    uri, options = place
    lost = nodes.add()

    def held(method, path):
        return "hold" if method == "PUT" and "-of-" in path and not proxy.released.is_set() else None

    with ForwardingProxy(s3_server.port, held) as proxy, ThreadPoolExecutor() as pool:
        copying = pool.submit(streamer.ray.copy, model, uri, target_options=through(proxy, options))
        until(lambda: len({path.partition("?")[0] for path in sent(proxy)}) >= 3)  # each node has one processor
        nodes.kill(lost)
        proxy.released.set()
        report = copying.result(LONG_S)
    assert report.files.files == SHARDS + 3  # the index, its manifest, and another
    assert loads(uri, options)


def test_a_file_that_the_target_has_with_other_content_is_refused_before_a_byte_is_sent(nodes, s3_server, model, place):
    uri, options = place
    streamer.ray.copy(model, uri, target_options=options)
    (model / "config.json").write_text("{ }")
    with pytest.raises(streamer.UsageError, match=r"another file is there: '?config.json"):
        streamer.ray.copy(model, uri, target_options=options)
