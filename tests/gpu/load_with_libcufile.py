"""One load through NVIDIA's libcufile, in a process whose driver is `fake_driver/cuda_for_cufile.cc`; one JSON line.

LD_PRELOAD=…/libcuda_for_cufile.so python -m gpu.load_with_libcufile LIBCUFILE FAKE_CUDA CHECKPOINT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from comparison import tensors_of

import streamer
from gpu.fake_devices import attached_fake_gpu
from streamer import _native

# `direct_io`: the files may be in the page cache. Small blocks begin and end anywhere.
OPTIONS = streamer.Options(gpudirect=True, direct_io=True, block_bytes=64 << 10)


def main(library: str, fake_cuda: str, checkpoint: str) -> None:
    with attached_fake_gpu(Path(fake_cuda)) as gpu:
        gpu.place_everything(0)
        _native.cuda_use_cufile_for_tests(library, "/proc/self/status")  # any file stands for the kernel module's
        with streamer.stream(checkpoint, device="cuda", options=OPTIONS, progress=False) as stream:
            loaded = dict(stream)
            report = stream.report
        _native.cuda_use_cufile_for_tests("libcufile.so.0", "/proc/driver/nvidia-fs/version")
    expected = tensors_of(Path(checkpoint))
    different = [name for name, tensor in expected.items() if not torch.equal(loaded[name], tensor)]
    found = {"path": report.device_path, "remarks": report.remarks, "tensors": len(loaded), "different": different}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
