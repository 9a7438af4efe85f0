"""Time loads of a Llama to one CUDA device: ``from_pretrained`` of transformers and of streamer, and `load_into`.

    python benchmarks/gpu_transformers.py [--gib 5] [--rounds 2] [--device cuda]

Each run is a fresh process with the files in the page cache; it loads twice, as the first load pays for the device's
memory. Every parameter is compared with the file after the clock has stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from llama import make_llama  # noqa: E402  its folder is no package
from measure import bring_into_page_cache  # noqa: E402

CONTESTANTS = ("streamer", "transformers", "load_into")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gpu-llama")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=CONTESTANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child, arguments.folder, arguments.device)
        return
    make_llama(arguments.folder, arguments.gib)
    bring_into_page_cache(sorted(arguments.folder.glob("*.safetensors")))
    runs: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for number in range(arguments.rounds):
        for name in CONTESTANTS[:: -1 if number % 2 else 1]:
            own = ["--child", name, "--folder", str(arguments.folder), "--device", arguments.device]
            done = subprocess.run([sys.executable, __file__, *own], stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    for name, seconds in runs.items():
        first, second = (statistics.median(each[load] for each in seconds) for load in (0, 1))
        print(f"{name:14} first load {first:6.2f} s, second {second:6.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1) + "\n")


def _child(name: str, folder: Path, device: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import streamer

    torch.empty(1, device=device)
    config = AutoConfig.from_pretrained(folder)
    seconds: list[float] = []
    model: Any = None
    for _ in range(2):
        model = None
        began = time.perf_counter()
        if name == "load_into":
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            streamer.load_into(folder, model, device=device, progress=False, strict=False)
        elif name == "streamer":
            load = streamer.transformers.from_pretrained
            model = load(AutoModelForCausalLM, str(folder), dtype=torch.bfloat16, device_map=device)
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=device)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    wanted = streamer.load(folder, progress=False)
    for key, tensor in model.state_dict().items():
        if key in wanted and not torch.equal(tensor.cpu(), wanted[key]):
            raise SystemExit(f"{name} loaded a wrong {key}")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
