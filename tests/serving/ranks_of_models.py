"""Fills models in the processes of a tensor-parallel vLLM, and says what each rank read of them.

    python ranks_of_models.py RANKS FOLDER_OR_URL=FOLDER …

Each model is loaded twice: from the first place by our loader, and from the folder by vLLM's own. vLLM is imported
once; the ranks are forks, joined by gloo. A line of JSON for each rank and model.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tiny_models import QUANTIZATIONS
from vllm import _custom_ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.parallel_state import destroy_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.layers.quantization.online import fp8
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload.inplace import reload_weights
from vllm.model_executor.utils import replace_parameter
from vllm.plugins import load_general_plugins
from vllm_engine import ARGUMENTS, note_streams

from streamer.core.node import leader, member, messages
from streamer.integrations.serving.recorder import Recorder

OTHER_WAYS = {  # beside tensor parallelism
    "llama": ["pipeline"],
    "mixtral": ["experts"],
    "qwen3_moe": ["experts"],
    "mixtral_fp8": ["experts"],
    "mixtral_online": ["experts"],
}
RECORDERS: list[Recorder] = []
STREAMS = note_streams()
# The kernel of blocks of FP8 needs a newer processor, and larger blocks. No kernel runs here.
for check in ("is_supported", "can_implement"):
    setattr(CPUFp8BlockScaledMMKernel, check, classmethod(lambda *_: (True, None)))


def _to_fp8(tensor: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (tensor.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _set_experts(_: Any, layer: torch.nn.Module, *tensors: torch.Tensor, **__: Any) -> None:
    for name, tensor in zip(("w13_weight", "w2_weight", "w13_scale", "w2_scale"), tensors, strict=True):
        replace_parameter(layer, name, tensor)


# Quantization while a model is loaded, without kernels.
_custom_ops.scaled_fp8_quant = _to_fp8
fp8.select_fp8_moe_backend = lambda **_: (None, None)
fp8._Fp8OnlineMoEBase._setup_kernel = _set_experts
if "PATIENCE_S" in os.environ:  # of all waits for other ranks, for a machine that is busy with other tests
    leader.ARRIVAL_S = messages.SILENCE_S = member.MEETING_S = float(os.environ["PATIENCE_S"])
_around = Recorder.around


@contextmanager
def _noted(recorder: Recorder, model: Any) -> Any:
    RECORDERS.append(recorder)
    with _around(recorder, model):
        yield


Recorder.around = _noted  # type: ignore[method-assign,assignment]


def main(ranks: int, pairs: list[str]) -> None:
    load_general_plugins()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            run(rank, ranks, f"tcp://127.0.0.1:{port}", pairs)
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit("a rank failed")


def run(rank: int, ranks: int, address: str, pairs: list[str]) -> None:
    torch.set_num_threads(1)
    for number, pair in enumerate(pairs):
        place, folder = pair.split("=")
        for way in ["", *OTHER_WAYS.get(Path(folder).name, [])]:
            config = config_of(place, "streamer", ranks, way)
            with set_current_vllm_config(config):
                if not number and not way:
                    init_distributed_environment(ranks, rank, address, rank, backend="gloo")
                else:
                    destroy_model_parallel()
                initialize_model_parallel(*((1, ranks) if way == "pipeline" else (ranks, 1)))
            report(rank, Path(folder).name, way, config, config_of(folder, "safetensors", ranks, way))


def config_of(place: str, load_format: str, ranks: int, way: str) -> VllmConfig:
    return EngineArgs(
        model=place,
        load_format=load_format,
        tensor_parallel_size=1 if way == "pipeline" else ranks,
        pipeline_parallel_size=ranks if way == "pipeline" else 1,
        enable_expert_parallel=way == "experts" and ranks > 1,
        enable_ep_weight_filter=way == "experts" and ranks > 1,
        distributed_executor_backend="mp",
        quantization="fp8_per_tensor" if place.endswith("_online") else None,
        **ARGUMENTS | ({"dtype": "float16"} if place.endswith((*QUANTIZATIONS, "_online")) else {}),
    ).create_engine_config()


def report(rank: int, name: str, way: str, ours: VllmConfig, theirs: VllmConfig) -> None:
    RECORDERS.clear()
    STREAMS.clear()
    model, expected = filled(ours), dict(filled(theirs).named_parameters())
    found = dict(model.named_parameters())
    different = [each for each in expected if not torch.equal(bits(found[each]), bits(expected[each]))]
    reports = [each.report for each in STREAMS if each.report.uri.startswith("s3://")]  # no trials of hooks
    recorder = next(each for each in RECORDERS if any("s3://" in str(one) for one in each.checkpoints))
    kept = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in expected.values()}
    line = {
        "rank": rank,
        "model": f"{name} {way}".strip(),
        "is_complete": found.keys() == expected.keys(),
        "different": different,
        "kept_bytes": sum(kept.values()),
        "read_bytes": sum(each.read_bytes for each in recorder.checkpoints),
        "stored_bytes": sum(each.bytes_read for each in reports),  # from the storage, and not from other ranks
        "direct_bytes": sum(each.direct_bytes for each in recorder.checkpoints),
        "staged_bytes": sum(each.staged_bytes for each in recorder.checkpoints),
        "early": dict(recorder.early_bytes),
        "early_fills": recorder.early_fills,
    }
    is_plain = "experts" not in OTHER_WAYS.get(name, []) and not quantized(ours)
    if is_plain or name == "llama_online":  # others need a kernel of a GPU to be reloaded
        line["reloaded"] = reloaded(model, ours, expected)
    os.write(1, (json.dumps(line) + "\n").encode())  # whole, beside the lines of others


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def quantized(config: VllmConfig) -> bool:
    return config.quant_config is not None


def filled(config: VllmConfig) -> torch.nn.Module:
    with set_current_vllm_config(config):
        loader = get_model_loader(config.load_config)
        torch.set_default_dtype(config.model_config.dtype)  # as vLLM's workers do
        model = loader.create_model(vllm_config=config, model_config=config.model_config)
        torch.set_default_dtype(torch.float32)
        loader.load_weights(model, config.model_config)
    return model


def reloaded(model: torch.nn.Module, config: VllmConfig, expected: dict[str, torch.Tensor]) -> bool:
    """Fill the parameters with zeros, and reload; say whether they are right again."""
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    with set_current_vllm_config(config):
        reload_weights(config, model, None, None, is_checkpoint_format=True)
    found = dict(model.named_parameters())
    return all(torch.equal(found[name], each) for name, each in expected.items())


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
    main(int(sys.argv[1]), sys.argv[2:])
