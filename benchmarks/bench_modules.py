"""Fill a Llama on the meta device: `load_into`, compared with `load` and with safetensors and ``assign=True``.

    python benchmarks/bench_modules.py [--layers 21] [--rounds 7] [--folder DIR] [--json FILE]

Guarantees: each run is a fresh process, contestants alternate in another order each round, the page cache is warm, and
every tensor of the filled module is compared with the files outside the measured section. `load_file` maps the files
and reads nothing, so the row "touched" then reads a byte of each page, as the first forward pass would.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from checkpoint import expected_tensors, shard_paths
from measure import MASK, Measurement, bring_into_page_cache, tensor_digest, touch_and_free
from torch import nn

ALLOWANCE_BYTES = 64 << 20
HIDDEN, INTERMEDIATE, KEY_VALUE, VOCABULARY = 2048, 5632, 512, 32000


class Layer(nn.Module):
    """One layer of the model."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q_proj": HIDDEN, "k_proj": KEY_VALUE, "v_proj": KEY_VALUE, "o_proj": HIDDEN}
        self.self_attn = nn.ModuleDict({name: nn.Linear(HIDDEN, size, bias=False) for name, size in sizes.items()})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
                "up_proj": nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
                "down_proj": nn.Linear(INTERMEDIATE, HIDDEN, bias=False),
            }
        )
        self.input_layernorm = nn.RMSNorm(HIDDEN)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN)


class Llama(nn.Module):
    """Names and shapes of a Llama's parameters; it computes nothing."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(VOCABULARY, HIDDEN),
                "layers": nn.ModuleList(Layer() for _ in range(layers)),
                "norm": nn.RMSNorm(HIDDEN),
            }
        )
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)


def on_meta(layers: int) -> nn.Module:
    with torch.device("meta"):
        return Llama(layers).to(torch.bfloat16)


def write(folder: Path, layers: int, shards: int = 2) -> None:
    from safetensors.torch import save_file

    named = list(on_meta(layers).state_dict().items())
    for number in range(shards):
        part = {
            name: torch.randint(-(2**15), 2**15, tensor.shape, dtype=torch.int16).view(torch.bfloat16)
            for name, tensor in named[number::shards]
        }
        save_file(part, folder / f"model-{number + 1:05}-of-{shards:05}.safetensors")


def load(paths: list[Path], _: nn.Module) -> dict[str, Any]:
    import streamer

    return streamer.load(paths, progress=False)


def load_into(paths: list[Path], model: nn.Module) -> dict[str, Any]:
    import streamer

    streamer.load_into(paths, model, progress=False)
    return model.state_dict()


def assign(paths: list[Path], model: nn.Module) -> dict[str, Any]:
    from safetensors.torch import load_file

    loaded: dict[str, Any] = {}
    for path in paths:
        loaded |= load_file(path)
    model.load_state_dict(loaded, assign=True)
    return model.state_dict()


def assign_and_touch(paths: list[Path], model: nn.Module) -> dict[str, Any]:
    state = assign(paths, model)
    for tensor in state.values():
        tensor.view(-1).view(torch.uint8)[::4096].sum()
    return state


CONTESTANTS: dict[str, tuple[Callable[[list[Path], nn.Module], dict[str, Any]], bool]] = {
    "streamer load": (load, True),
    "streamer load_into, meta": (load_into, True),
    "load_file, assign=True": (assign, False),
    "load_file, assign=True, touched": (assign_and_touch, False),
}


def run_one(name: str, folder: Path, layers: int) -> dict[str, Any]:
    """Load once, in this process, with everything imported before the clock starts."""
    for module in ("safetensors.torch", "streamer._load", "streamer._load_into"):
        import_module(module)
    paths, (contestant, huge_pages) = shard_paths(folder), CONTESTANTS[name]
    model = on_meta(layers)
    touch_and_free(sum(path.stat().st_size for path in paths), huge_pages=huge_pages)
    with Measurement() as measured:
        state = contestant(paths, model)
    found = {"bytes": 0, "digest": 0, "tensors": len(state)}
    for each, tensor in state.items():
        size, value = tensor_digest(each, tensor)
        found["bytes"] += size
        found["digest"] = (found["digest"] + value) & MASK
    return found | measured.to_dict()


def run_rounds(folder: Path, layers: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    names, runs = list(CONTESTANTS), {name: [] for name in CONTESTANTS}
    right = expected_tensors(shard_paths(folder))
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            bring_into_page_cache(shard_paths(folder))
            command = [sys.executable, __file__, "--run", name, "--folder", str(folder), "--layers", str(layers)]
            figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            if any(figures[key] != right[key] for key in right):
                raise SystemExit(f"{name} loaded wrong tensors")
            runs[name].append(figures)
    return runs


def show(runs: dict[str, list[dict[str, Any]]]) -> bool:
    """Print the table and the goals; return whether the goals are met."""
    print(f"{'':33}{'median s':>9}{'best':>7}{'max':>7}{'CPU-s/GB':>10}{'peak MiB over tensors':>23}{'faults':>9}")
    median = {name: statistics.median(run["seconds"] for run in each) for name, each in runs.items()}
    peaks = {name: max(run["peak_rss_bytes"] - run["bytes"] for run in each) for name, each in runs.items()}
    for name, each in runs.items():
        seconds = [run["seconds"] for run in each]
        cpu = statistics.median(run["cpu_seconds"] / run["bytes"] * 1e9 for run in each)
        faults = statistics.median(run["minor_faults"] for run in each)
        times = f"{median[name]:9.3f}{min(seconds):7.3f}{max(seconds):7.3f}"
        print(f"{name:33}{times}{cpu:10.3f}{peaks[name] / 2**20:23.1f}{faults:9.0f}")
    ratio = median["streamer load_into, meta"] / median["streamer load"]
    of_into, of_load = (min(run["seconds"] for run in runs[f"streamer {name}"]) for name in ("load_into, meta", "load"))
    met = ratio <= 1.05, peaks["streamer load_into, meta"] <= ALLOWANCE_BYTES
    share = f"{ratio:.3f} of load's time [bests {of_into / of_load:.3f}]"
    print(f"{'met' if met[0] else 'MISSED'}: load_into takes {share} (goal 1.05)")
    print(f"{'met' if met[1] else 'MISSED'}: its peak is at most tensors + 64 MiB")
    return all(met)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=21)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run_one(arguments.run, arguments.folder, arguments.layers)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not shard_paths(folder):
            write(folder, arguments.layers)
        runs = run_rounds(folder, arguments.layers, arguments.rounds)
    show(runs)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs))


if __name__ == "__main__":
    main()
