"""Who loads to one CUDA device, and how: each as its documentation shows, files listed explicitly.

Guarantees: every function returns name and tensor of the whole model, all on the device when it returns. A library that
is not installed is a row that says so. None is tuned, but where its default could not use the device's pinned path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# Of the checkpoint that these benchmarks make.
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "I64": "int64"}

Named = Iterable[tuple[str, Any]]

__all__ = ["CONTESTANTS", "IMPORTS", "OVER_HTTP"]


def streamer_load(paths: list[str], device: str) -> Named:
    import streamer

    return streamer.load(paths, device=device, progress=False).items()


def streamer_load_into(paths: list[str], device: str) -> Named:
    """Into tensors that exist, as a model's parameters do; the clock counts making them too."""
    import torch

    import streamer

    with streamer.open(paths) as opened:
        parts = {name: opened.get_slice(name) for name in opened}
    targets = {
        name: torch.empty(part.get_shape(), dtype=getattr(torch, _DTYPES[part.get_dtype()]), device=device)
        for name, part in parts.items()
    }
    streamer.load_into(paths, targets, progress=False)
    return targets.items()


def safetensors_load_file(paths: list[str], device: str) -> Named:
    from safetensors.torch import load_file

    return [pair for path in paths for pair in load_file(path, device=device).items()]


def safetensors_prefetch(paths: list[str], device: str) -> Named:
    """`prefetch` of safetensors 0.9: read ahead to the device, then handed out."""
    from safetensors import safe_open

    found: list[tuple[str, Any]] = []
    for path in paths:
        with safe_open(path, framework="pt", device=device) as opened:
            if not hasattr(opened, "prefetch"):
                raise ImportError("this safetensors has no prefetch; 0.9 brings it")
            opened.prefetch()
            found += [(name, opened.get_tensor(name)) for name in opened.keys()]  # noqa: SIM118  not a dict
    return found


def fastsafetensors_loader(paths: list[str], device: str) -> Named:
    from fastsafetensors import SingleGroup
    from fastsafetensors.parallel_loader import ParallelLoader

    loader = ParallelLoader(pg=SingleGroup(), hf_weights_files=paths, use_tqdm_on_load=False, device=device, nogds=True)
    return [(name, tensor.clone()) for name, tensor in loader.iterate_weights()]  # its tensors are views of a buffer


def instanttensor_open(paths: list[str], device: str) -> Named:
    import instanttensor
    import torch

    index = torch.device(device).index or 0
    with instanttensor.safe_open(paths, framework="pt", device=index) as opened:
        return list(opened.tensors())


def runai_streamer(paths: list[str], device: str) -> Named:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths, device=device)
        return list(streamer.get_tensors())


CONTESTANTS: dict[str, Callable[[list[str], str], Named]] = {
    "streamer load": streamer_load,
    "streamer load_into": streamer_load_into,
    "safetensors load_file": safetensors_load_file,
    "safetensors prefetch": safetensors_prefetch,
    "fastsafetensors": fastsafetensors_loader,
    "instanttensor": instanttensor_open,
    "runai": runai_streamer,
}
# Outside the clock: most servers have them by then. The rest of streamer is loaded by its first small file.
IMPORTS = {
    "streamer load": ["streamer._load"],
    "streamer load_into": ["streamer._load", "streamer._checkpoint"],
    "safetensors load_file": ["safetensors.torch"],
    "safetensors prefetch": ["safetensors"],
    "fastsafetensors": ["fastsafetensors.parallel_loader"],
    "instanttensor": ["instanttensor"],
    "runai": ["runai_model_streamer"],
}
OVER_HTTP = ("streamer load",)  # the others read files, or S3 with a server this script does not bring
