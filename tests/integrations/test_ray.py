"""``streamer.ray`` without Ray; with it, see ``tests/on_ray``."""

from __future__ import annotations

import pickle
import sys
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import streamer
from streamer.core.peers import discovery
from streamer.core.peers.ray_actors import Place
from streamer.integrations.ray import loading


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize("call", [streamer.ray.warm, streamer.ray.load])
def test_without_ray_an_error_names_what_to_install(call):
    with pytest.raises(streamer.UsageError, match="ray is not installed"):
        call("s3://bucket/model")


@pytest.mark.parametrize("call", [streamer.ray.warm, streamer.ray.load])
def test_outside_of_a_cluster_an_error_names_what_to_call(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(streamer.UsageError, match=r"ray\.init\(address="):
        call("s3://bucket/model")


def test_a_function_that_names_an_integration_can_be_sent_to_another_process_regression():
    """cloudpickle sends the modules that a function names, and could not send ``streamer.ray``."""
    named = sys.modules["streamer.ray"]
    assert pickle.loads(pickle.dumps(named)) is named


class Head:
    """What a process sees of Ray: its look-up of a name waits as long as the head is down."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.is_up, self.places = threading.Event(), {"cache-n1": Place("/nvme", "10.0.0.1:7070", ("10.0.0.2:7070",))}
        self.is_up.set()

    def is_initialized(self):
        return True

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "n1")

    def get_actor(self, name, _):
        self.is_up.wait(60)
        if name not in self.places:
            raise ValueError(name)
        return SimpleNamespace(place=SimpleNamespace(remote=lambda: self.places[name]))

    def get(self, answer, timeout):
        return answer


@pytest.fixture
def head(monkeypatch):
    head = Head()
    monkeypatch.setitem(sys.modules, "ray", head)
    monkeypatch.setattr(loading, "LONGEST_LOOKUP_S", 0.2)
    monkeypatch.setattr(discovery, "LONGEST_LOOKUP_S", 0.2)
    loading._places.clear()
    discovery._last_found.clear()
    yield head
    head.is_up.set()


def test_while_the_head_is_down_loads_use_the_last_answer(head):
    for _ in range(2):
        options = streamer.ray.node_options()
        assert (options.cache_dir, options.peers) == ("/nvme", "ray")
        assert discovery.addresses_of("ray") == ["10.0.0.1:7070", "10.0.0.2:7070"]  # that of its own node, too
        head.is_up.clear()


def test_a_load_that_never_had_an_answer_reads_from_the_storage(head):
    head.is_up.clear()
    assert streamer.ray.node_options() == streamer.Options()
    assert discovery.addresses_of("ray") == []


def test_an_own_choice_of_cache_and_peers_stays(head):
    assert streamer.ray.node_options(streamer.Options(cache_dir="/mine")).cache_dir == "/mine"
    assert streamer.ray.node_options(streamer.Options(peers="")).peers == ""


def test_a_node_without_an_actor_has_no_cache(head):
    head.places.clear()
    assert streamer.ray.node_options() == streamer.Options()
