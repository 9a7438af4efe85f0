"""Fill the parameters of tensor-parallel ranks as vLLM's loaders do: whole tensors, deferred ones, and `load_into`.

    python benchmarks/gpu_serving.py [--device cuda:0] [--gib 4] [--parts 8] [--ranks 1] [--http] [--rounds 3]

The model has vLLM's fused QKV, fused gate and up, row-parallel and vocabulary-parallel layers, each with a loader that
narrows what it gets and copies it. `whole` streams whole tensors to these loaders, `deferred` is the load format
`streamer`, and `load_into` reads the same parts by `slices=`, without loaders: the limit. Each rank is a fresh process
that has finished its imports; the clock runs until the last rank is done; rows take turns. `CPU s` is that of all
ranks. `read` is what they take, from the storage or from each other, over what they keep. All ways must give the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from rank_processes import Ranks, in_turn, print_rows, request_of_parent  # noqa: E402  its folder is no package

WAYS = ("whole", "deferred", "load_into")
HIDDEN, INNER, VOCABULARY = 2048, 7168, 16384
FUSED = {"q_proj": ("qkv", 0), "k_proj": ("qkv", 1), "v_proj": ("qkv", 2), "gate_proj": ("up", 0), "up_proj": ("up", 1)}
SHAPES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (HIDDEN, HIDDEN)),
    **dict.fromkeys(("gate_proj", "up_proj"), (INNER, HIDDEN)),
    "down_proj": (HIDDEN, INNER),
    "norm": (HIDDEN,),
}
LAYER_BYTES = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER + HIDDEN)


def make(folder: Path, size_bytes: int) -> None:
    """Write the checkpoint, a shard for each layer, unless it is there."""
    import safetensors.torch
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    layers = max(1, size_bytes // LAYER_BYTES)
    for number in range(layers):
        path = folder / f"layer-{number:03}.safetensors"
        tensors = {f"{number}.{name}": torch.empty(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
        if not number:
            tensors["embed"] = torch.empty(VOCABULARY, HIDDEN, dtype=torch.bfloat16)
        for tensor in tensors.values():
            tensor.view(torch.int16).random_(generator=torch.Generator().manual_seed(number))
        if not path.exists():
            safetensors.torch.save_file(tensors, path)


class Model:
    """One rank's parameters, and their loaders."""

    def __init__(self, names: Iterable[str], rank: int, parts: int, device: str) -> None:
        import torch

        self.rank, self.parts, self.parameters = rank, parts, {}
        for name in names:
            layer, _, kind = name.rpartition(".")
            fused, _ = FUSED.get(kind, (kind, 0))
            rows, *columns = SHAPES.get(kind, (VOCABULARY, HIDDEN))
            if kind in ("o_proj", "down_proj"):
                columns = [columns[0] // parts]
            elif kind != "norm":
                rows = rows // parts * (3 if fused == "qkv" else 2 if fused == "up" else 1)
            key = f"{layer}.{fused}"
            if key not in self.parameters:
                data = torch.zeros(rows, *columns, dtype=torch.bfloat16, device=device)
                self.parameters[key] = torch.nn.Parameter(data, requires_grad=False)

    def part(self, name: str) -> Any:
        """Return the region of a parameter that a tensor's part fills."""
        layer, _, kind = name.rpartition(".")
        fused, place = FUSED.get(kind, (kind, 0))
        parameter = self.parameters[f"{layer}.{fused}"].data
        rows = parameter.shape[0] // {"qkv": 3, "up": 2}.get(fused, 1)
        return parameter.narrow(0, place * rows, rows)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Copy each tensor's part, as vLLM's loaders do."""
        for name, loaded in weights:
            region = self.part(name)
            for dim, size in enumerate(region.shape):
                begin = self.rank * size if size < loaded.shape[dim] else 0
                loaded = loaded.narrow(dim, begin, size)  # noqa: PLW2901 (as loaders do)
            region.copy_(loaded)


def part_of(name: str, rank: int, parts: int) -> Any:
    """Return the same part as `Model`, as a slice of the stored tensor."""
    import streamer

    kind = name.rpartition(".")[2]
    return None if kind == "norm" else streamer.Slice(int(kind in ("o_proj", "down_proj")), rank, parts)


def loaded_by_loaders(model: Model, place: str, options: dict[str, Any], recorder: Any) -> int:
    """Fill a model by its loaders; return the bytes that this rank took."""
    from streamer.integrations.serving.weights_stream import parsed, stream_weights

    how: dict[str, Any] = {"patterns": None, "ignored": None, "progress": False, "recorder": recorder}
    recording = recorder.around(None) if recorder else nullcontext()
    with recording, stream_weights(place, parsed(options, ()), lambda _: True, **how) as tensors:
        model.load_weights(tensors)
        if recorder is None:
            return int(tensors.report.bytes_read + tensors.report.shared_bytes)
    return sum(each.read_bytes for each in recorder.checkpoints)


def rank() -> None:
    """Load once the parent says so; one process."""
    request = request_of_parent()
    import torch
    import torch.fx.experimental.symbolic_shapes  # torch imports it for the first mode, and an engine has done so

    import streamer
    import streamer.backends.s3.store  # before the clock runs
    from streamer.integrations.serving import weights_stream  # noqa: F401  the same
    from streamer.integrations.serving.recorder import Recorder

    way, place, number, parts = (request[name] for name in ("way", "place", "rank", "parts"))
    options = {"storage_options": {"endpoint_url": request["endpoint"]} if request["endpoint"] else {}}
    with streamer.open(place, **options) as checkpoint:
        names = list(checkpoint.offset_keys())
    model = Model(names, number, parts, request["device"])
    recorder = Recorder()
    slices = {name: part_of(name, number, parts) for name in names}
    targets = {name: model.part(name) for name in names} if way == "load_into" else {}
    print("ready", flush=True)
    sys.stdin.readline()
    before = sum(os.times()[:2])
    if way == "load_into":
        report = streamer.load_into(place, targets, slices=slices, progress=False, **options)
        read_bytes = report.bytes_read + report.shared_bytes
    else:
        read_bytes = loaded_by_loaders(model, place, options, recorder if way == "deferred" else None)
    if request["device"] != "cpu":
        torch.cuda.synchronize()
    print(json.dumps({"cpu_s": sum(os.times()[:2]) - before, "read": read_bytes}), flush=True)
    sys.stdin.readline()
    kept = [each.cpu().view(torch.uint8).numpy() for each in model.parameters.values()]
    crcs = [zlib.crc32(each) for each in kept]
    print(json.dumps({"crcs": crcs, "kept": sum(each.nbytes for each in kept)}), flush=True)
    os._exit(0)


def measured(way: str, arguments: argparse.Namespace, place: str, endpoint: str | None) -> dict[str, Any]:
    """Run one round."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    request = {"way": way, "place": place, "endpoint": endpoint, "parts": arguments.parts, "device": arguments.device}
    requests = [{**request, "rank": number} for number in range(arguments.ranks)]
    with Ranks(__file__, requests, os.environ | keys | {"LOCAL_WORLD_SIZE": str(arguments.ranks)}) as ranks:
        seconds, answers = ranks.load()
        checks = ranks.checked()
    read = sum(each["read"] for each in answers) / sum(each["kept"] for each in checks)
    cpu_s = sum(each["cpu_s"] for each in answers)
    return {"seconds": seconds, "cpu_s": cpu_s, "read": read, "crcs": [each["crcs"] for each in checks]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gpu-serving" / "model")
    arguments = parser.parse_args()
    make(arguments.folder, int(arguments.gib * 2**30))
    with origin(arguments) as server:
        place = f"s3://{arguments.folder.name}" if server else str(arguments.folder)
        rows = in_turn(WAYS, arguments.rounds, lambda way: measured(way, arguments, place, server and server.http_url))
    assert len({json.dumps(each["crcs"]) for found in rows.values() for each in found}) == 1, "the parameters differ"
    print_rows(rows, {"CPU s": ("cpu_s", 1, ".2f"), "read": ("read", 1, ".2f")})


def origin(arguments: argparse.Namespace) -> Any:
    """Return a context with a server of the folder, or with None."""
    if not arguments.http:
        return nullcontext()
    from nginx_origin import NginxOrigin

    return NginxOrigin(arguments.folder.parent)


if __name__ == "__main__":
    rank() if "--rank" in sys.argv else main()
