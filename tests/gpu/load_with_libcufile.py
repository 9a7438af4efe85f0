"""One load through NVIDIA's libcufile, in a process whose driver is `fake_driver/cuda_for_cufile.cc`; one JSON line.

LD_PRELOAD=…/libcuda_for_cufile.so python -m gpu.load_with_libcufile LIBCUFILE FAKE_CUDA CHECKPOINT asked|automatic
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from comparison import tensors_of

import streamer
from gpu.fake_devices import attached_cufile, attached_fake_gpu
from streamer.core.engine import tuning

# `direct_io`: the files may be in the page cache. Small blocks begin and end anywhere.
OPTIONS = streamer.Options(direct_io=True, block_bytes=64 << 10)


def main(library: str, fake_cuda: str, checkpoint: str, how: str) -> None:
    tuning.LEAST_BYTES_FOR_GPUDIRECT = 1
    options = replace(OPTIONS, gpudirect={"asked": True, "automatic": None}[how])
    with attached_fake_gpu(Path(fake_cuda)) as gpu, attached_cufile(Path(library)):
        gpu.place_everything(0)
        with streamer.stream(checkpoint, device="cuda", options=options, progress=False) as stream:
            loaded = dict(stream)
            report = stream.report
    expected = tensors_of(Path(checkpoint))
    different = [name for name, tensor in expected.items() if not torch.equal(loaded[name], tensor)]
    found = {"path": report.device_path, "remarks": report.remarks, "tensors": len(loaded), "different": different}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
