"""Loads a checkpoint with Run:ai's own package, on the library of STREAMER_LIBRARY, and compares it with safetensors'.

``python -m conformance.runai_load FOLDER URL_OF_THE_SAME``
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from runai_model_streamer import SafetensorsStreamer
from safetensors.torch import load_file


def main(folder: Path, url: str) -> None:
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    expected = {name: tensor for shard in shards for name, tensor in load_file(folder / shard).items()}
    with SafetensorsStreamer() as reading:
        reading.stream_files([f"{url}/{shard}" for shard in shards])
        found = dict(reading.get_tensors())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    print(f"{len(found)} tensors are equal")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
