"""`WarmNodes` is made and called by Ray's own code: the start of Ray's engine for vLLM, up to vLLM's engine core.

The core needs a GPU. In its place, vLLM's loader fills a model on the node of the engine, as in tests/serving.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils", reason="Ray is installed by make test-ray alone")
pytest.importorskip("vllm", reason="make test-ray runs this file with vLLM")

import ray
from ray_nodes import LONG_S
from servers.forwarding import ForwardingProxy
from tiny_models import save_llama

import streamer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("_actors_end")]
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from ray_serve_llm import config_of  # noqa: E402  (in the folder that was just added)

SUFFIX = ".safetensors"


def loader():
    """Return what runs on the node of the engine; a process of Ray cannot import this module."""

    def sums_of_weights(vllm_config):
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.plugins import load_general_plugins

        load_general_plugins()  # as the engine core does
        found = {}

        class Model(torch.nn.Module):
            def load_weights(self, weights):
                found.update((name, float(tensor.double().sum())) for name, tensor in weights)
                return {*found}

        with set_current_vllm_config(vllm_config):
            get_model_loader(vllm_config.load_config).load_weights(Model(), vllm_config.model_config)
        return found

    return sums_of_weights


def replica(sums_of_weights):
    """Return what runs as a replica."""

    def start(config):
        import asyncio
        import os
        import urllib.request
        from contextlib import suppress

        import ray
        from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        found = {}

        def load(engine, arguments, vllm_config, group):
            with suppress(OSError):  # so that the proxy knows
                urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + "/loads", timeout=60)
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            read = ray.remote(sums_of_weights).options(num_cpus=0, scheduling_strategy=where)
            found.update(ray.get(read.remote(vllm_config), timeout=LONG_S))
            raise InterruptedError

        VLLMEngine._start_async_llm_engine = load
        try:
            asyncio.run(VLLMEngine(config).start())
        except InterruptedError:
            return found

    return start


def started(config):
    task = ray.remote(replica(loader())).options(
        num_cpus=0, runtime_env=config.runtime_env, scheduling_strategy="SPREAD"
    )
    return ray.get(task.remote(config), timeout=LONG_S)


def test_vllm_loads_what_the_callback_brought_to_its_node(nodes, s3_server, tmp_path):
    uri = s3_server.upload_folder(save_llama(tmp_path / "llama"), "private", tmp_path.name)
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:
        login = {
            "AWS_ACCESS_KEY_ID": s3_server.identity.access_key,
            "AWS_SECRET_ACCESS_KEY": s3_server.identity.secret_key,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        }
        config = config_of(uri, environment=login, accelerator_config={"kind": "cpu"})
        config.engine_kwargs |= {"dtype": "float32", "enforce_eager": True, "max_model_len": 64}
        config.engine_kwargs |= {"skip_tokenizer_init": True}
        found = started(config)
    paths = [path.partition("?")[0] for method, path in proxy.requests if method == "GET"]
    before, after = paths[: paths.index("/loads")], paths[paths.index("/loads") :]
    expected = streamer.load(tmp_path / "llama")
    assert found == {name: float(each.double().sum()) for name, each in expected.items()}
    assert {path[-len(SUFFIX) :] for path in before} >= {SUFFIX}
    assert not [path for path in after if path.endswith(SUFFIX)]
    assert sum(folder.exists() for folder in nodes.folders.values()) == 1  # the engine has one node


def test_a_node_that_cannot_be_warmed_is_an_error_before_vllm_starts(nodes):
    config = config_of("s3://private/no-such-model", accelerator_config={"kind": "cpu"})
    with pytest.raises(Exception, match=r"1 of 1 node could not be warmed; node "):
        started(config)
