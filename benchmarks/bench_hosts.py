"""Time loads of one model to the CPU: by a host library's own loader, by streamer's for this host, and by `load_into`.

    python benchmarks/bench_hosts.py [--gib 0.5] [--rounds 5] [--hosts transformers,diffusers] [--json out.json]

The model is in a folder in the page cache. Every run is a fresh process that imports the host, loads a tiny model and
touches its memory before the clock starts; contestants alternate. Loaders that map files have read nothing when they
return, so each contestant reads a byte of every page of every parameter before the clock stops. All tensors are
compared by their digests afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from llama import make_llama  # noqa: E402  its folder is no package
from measure import MASK, Measurement, bring_into_page_cache, tensor_digest, touch_and_free  # noqa: E402

CONTESTANTS = ("streamer", "host", "load_into")
PAGE_BYTES = 4096


def transformers_loaders(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return three ways to load a Llama with ``from_pretrained``."""
    from transformers import LlamaForCausalLM

    import streamer

    return {
        "streamer": lambda: streamer.transformers.from_pretrained(LlamaForCausalLM, str(folder)),
        "host": lambda: LlamaForCausalLM.from_pretrained(folder),
        "load_into": lambda: _filled(folder, _empty_llama(folder)),
    }


def accelerate_loaders(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return three ways to load the same Llama with ``load_checkpoint_and_dispatch``."""
    from accelerate import load_checkpoint_and_dispatch

    import streamer

    ours = streamer.accelerate.load_checkpoint_and_dispatch
    return {
        "streamer": lambda: ours(_empty_llama(folder), str(folder), device_map={"": "cpu"}),
        "host": lambda: load_checkpoint_and_dispatch(_empty_llama(folder), folder, device_map={"": "cpu"}),
        "load_into": lambda: _filled(folder, _empty_llama(folder)),
    }


def diffusers_loaders(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return three ways to load an autoencoder of diffusers."""
    from accelerate import init_empty_weights
    from diffusers import AutoencoderKL

    import streamer

    def filled() -> Any:
        with init_empty_weights():
            model = AutoencoderKL.from_config(AutoencoderKL.load_config(folder))
        return _filled(folder, model)

    return {
        "streamer": lambda: streamer.diffusers.from_pretrained(AutoencoderKL, str(folder)),
        "host": lambda: AutoencoderKL.from_pretrained(folder),
        "load_into": filled,
    }


def _empty_llama(folder: Path) -> Any:
    import torch
    from accelerate import init_empty_weights
    from transformers import LlamaConfig, LlamaForCausalLM

    with init_empty_weights():
        return LlamaForCausalLM._from_config(LlamaConfig.from_pretrained(folder), dtype=torch.bfloat16)


def _filled(folder: Path, model: Any) -> Any:
    import streamer

    streamer.load_into(folder, model, device="cpu", progress=False)
    return model


def make_autoencoder(folder: Path, gib: float) -> Path:
    """Save an autoencoder whose widest layers together have about `gib` GiB; 0 makes the smallest one."""
    from diffusers import AutoencoderKL

    channels = [64, 64, 64, max(64, round((gib * 2**30 / 650) ** 0.5 / 64) * 64)]
    blocks = len(channels)
    AutoencoderKL(
        block_out_channels=channels,
        down_block_types=["DownEncoderBlock2D"] * blocks,
        up_block_types=["UpDecoderBlock2D"] * blocks,
        norm_num_groups=32,
    ).save_pretrained(folder)
    return folder


HOSTS = {
    "transformers": (make_llama, transformers_loaders),
    "accelerate": (make_llama, accelerate_loaders),
    "diffusers": (make_autoencoder, diffusers_loaders),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", default=",".join(HOSTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(*arguments.child)
        return
    results = {host: _measured(host, arguments) for host in arguments.hosts.split(",")}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


def _measured(host: str, arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    make, _ = HOSTS[host]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = make(Path(scratch, "model"), arguments.gib)
        for number in range(arguments.rounds):
            for name in CONTESTANTS[:: -1 if number % 2 else 1]:
                bring_into_page_cache(sorted(folder.glob("*.safetensors")))
                command = [sys.executable, __file__, "--child", host, name, str(folder)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit(f"{host}: the contestants' tensors differ")
    for name, each in runs.items():
        seconds, cpu_s = ([run[key] for run in each] for key in ("seconds", "cpu_seconds"))
        times = f"median {statistics.median(seconds):6.2f} s  best {min(seconds):6.2f} s"
        print(f"{host:13} {name:10} {times}  CPU {statistics.median(cpu_s):6.2f} s", flush=True)
    print(f"{host:13} {each[0]['bytes'] / 1e9:.2f} GB, every tensor equal")
    return runs


def _child(host: str, name: str, path: str) -> None:
    import torch

    folder = Path(path)
    size_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    make, loaders = HOSTS[host]
    with tempfile.TemporaryDirectory() as scratch:
        loaders(make(Path(scratch, "tiny"), 0))[name]()  # the host imports most of its modules when it loads a model
    load = loaders(folder)[name]
    touch_and_free(size_bytes * 5 // 4, huge_pages=name != "host")
    with Measurement() as measured:
        tensors = dict(load().state_dict())
        for tensor in tensors.values():
            tensor.detach().reshape(-1).view(torch.uint8)[::PAGE_BYTES].sum()
    digest = sum(tensor_digest(key, tensor)[1] for key, tensor in tensors.items()) & MASK
    held = sum(tensor.nbytes for tensor in tensors.values())
    print(json.dumps({"digest": digest, "bytes": held, **measured.to_dict()}))


if __name__ == "__main__":
    main()
