"""Fills a mixture of experts in four processes of vLLM, one for each rank, and says what each of them read.

    python four_ranks.py FOLDER LOAD_FORMAT

vLLM is imported once; the ranks are forks, joined by gloo. A line of JSON for each rank: the digests of its parameters,
and the tensors that its loader gave.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.plugins import load_general_plugins
from vllm_engine import ARGUMENTS, note_streams

from streamer.core.node import leader, member, messages

RANKS = 4
STREAMS = note_streams()
if "PATIENCE_S" in os.environ:  # of all waits for other ranks, for a machine that is busy with other tests
    leader.ARRIVAL_S = messages.SILENCE_S = member.MEETING_S = float(os.environ["PATIENCE_S"])


def main(folder: str, load_format: str) -> None:
    load_general_plugins()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            run(rank, f"tcp://127.0.0.1:{port}", folder, load_format)
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit("a rank failed")


def run(rank: int, address: str, folder: str, load_format: str) -> None:
    torch.set_num_threads(1)
    arguments = EngineArgs(
        model=folder,
        load_format=load_format,
        tensor_parallel_size=RANKS,
        enable_expert_parallel=True,
        enable_ep_weight_filter=True,
        distributed_executor_backend="mp",
        **ARGUMENTS,
    )
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(RANKS, rank, address, rank, backend="gloo")
        initialize_model_parallel(RANKS, 1)
        report(rank, *filled(config))


def filled(config: VllmConfig) -> tuple[torch.nn.Module, list[str]]:
    loader = get_model_loader(config.load_config)
    given: list[str] = []
    theirs = loader._get_weights_iterator

    def recorded(*arguments: Any) -> Any:
        for name, tensor in theirs(*arguments):
            given.append(name)
            yield name, tensor

    loader._get_weights_iterator = recorded
    model = loader.create_model(vllm_config=config, model_config=config.model_config)
    loader.load_weights(model, config.model_config)
    return model, given


def report(rank: int, model: torch.nn.Module, given: list[str]) -> None:
    digests = {
        name: hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in model.named_parameters()
    }
    reports = [each.report for each in STREAMS if each.report.uri.startswith("s3://")]  # no trials of hooks
    sums = {name: sum(getattr(each, name) for each in reports) for name in ("bytes_read", "shared_bytes")}
    line = json.dumps({"rank": rank, "parameters": digests, "given": given, **sums}) + "\n"
    os.write(1, line.encode())  # whole, beside the lines of others


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
    main(*sys.argv[1:])
