"""Load a checkpoint with the installed wheel; fail unless it is the wheel's code, its own libcurl, and right bytes."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file

import streamer
from streamer import _native


def main(folder: Path) -> None:
    package = Path(streamer.__file__).parent
    assert package.is_relative_to(sys.prefix), f"imported from {package}"
    assert files("streamer").joinpath("py.typed").is_file(), "the types are not in the wheel"
    assert files("streamer._commands").joinpath("load_page.html").is_file(), "the page of a load is not in the wheel"
    assert not [name for name in vars(_native) if "tests" in name], "a door for tests is in the wheel"

    expected = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    loaded = streamer.load(folder, progress=False)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert torch.equal(_bytes(loaded[name]), _bytes(tensor)), name

    curls = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcurl" in line}
    assert curls, "the engine has no libcurl"
    assert all(Path(curl).is_relative_to(sys.prefix) for curl in curls), f"not the wheel's own: {curls}"
    print(f"{len(expected)} tensors equal, loaded by {package}")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
