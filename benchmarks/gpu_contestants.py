"""The contestants that load to one CUDA device, each as its documentation shows, with an explicit list of files.

Guarantees: every function returns all names and tensors of the model, and all tensors are on the device when it
returns. The row of a library that is not installed says so. Settings are changed only if the default cannot use the
device's pinned path, or reads the disk although the files are in the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from empty_targets import empty_targets

Named = Iterable[tuple[str, Any]]

_FASTSAFETENSORS = ("fastsafetensors.parallel_loader",)

__all__ = ["COLD_BY_RING", "CONTESTANTS", "OVER_HTTP", "Contestant"]


def streamer_load(paths: list[str], device: str) -> Named:
    import streamer

    return streamer.load(paths, device=device, progress=False).items()


def streamer_load_into(paths: list[str], device: str) -> Named:
    """Load into existing tensors, such as a model's parameters; the time includes their creation."""
    import streamer

    targets = empty_targets(paths, device)
    streamer.load_into(paths, targets, progress=False)
    return targets.items()


def safetensors_load_file(paths: list[str], device: str) -> Named:
    from safetensors.torch import load_file

    return [pair for path in paths for pair in load_file(path, device=device).items()]


def safetensors_prefetch(paths: list[str], device: str) -> Named:
    """Use `prefetch` of safetensors 0.9: tensors are read ahead to the device, and then taken."""
    from safetensors import safe_open

    found: list[tuple[str, Any]] = []
    for path in paths:
        with safe_open(path, framework="pt", device=device) as opened:
            if not hasattr(opened, "prefetch"):
                raise ImportError("this safetensors has no prefetch; version 0.9 has it")
            opened.prefetch()
            found += [(name, opened.get_tensor(name)) for name in opened.keys()]  # noqa: SIM118  not a dict
    return found


def fastsafetensors_loader(paths: list[str], device: str) -> Named:
    from fastsafetensors import SingleGroup
    from fastsafetensors.parallel_loader import ParallelLoader

    loader = ParallelLoader(pg=SingleGroup(), hf_weights_files=paths, use_tqdm_on_load=False, device=device, nogds=True)
    return list(loader.iterate_weights())  # since 0.5, tensors keep the memory of their buffer alive


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


@dataclass(frozen=True)
class Contestant:
    """One row: its function, its imports, and the settings in its environment."""

    load: Callable[[list[str], str], Named]
    # Imported before the clock starts, as in most servers. A load of a small file imports the rest of streamer.
    imports: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


COLD_BY_RING = "streamer load by the ring"  # beside "streamer load", which may use GPUDirect Storage for cold files
# Rivals that read past the page cache by default run in both ways, and the better one counts.
CONTESTANTS = {
    "streamer load": Contestant(streamer_load, ("streamer._load",)),
    COLD_BY_RING: Contestant(streamer_load, ("streamer._load",), {"STREAMER_GPUDIRECT": "0"}),
    "streamer load_into": Contestant(streamer_load_into, ("streamer._load", "safetensors")),
    "safetensors load_file": Contestant(safetensors_load_file, ("safetensors.torch",)),
    "safetensors prefetch": Contestant(safetensors_prefetch, ("safetensors",)),
    "fastsafetensors": Contestant(fastsafetensors_loader, _FASTSAFETENSORS),
    "fastsafetensors buffered": Contestant(fastsafetensors_loader, _FASTSAFETENSORS, {"FASTSAFETENSORS_ODIRECT": "0"}),
    "instanttensor": Contestant(instanttensor_open, ("instanttensor",)),
    "instanttensor buffered": Contestant(instanttensor_open, ("instanttensor",), {"INSTANTTENSOR_BACKEND": "BUFFERED"}),
    "runai": Contestant(runai_streamer, ("runai_model_streamer",)),
    "runai sync_buffered": Contestant(
        runai_streamer, ("runai_model_streamer",), {"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered"}
    ),
}
OVER_HTTP = ("streamer load",)  # the others read files, or need an S3 server, which this script does not start
