"""What the engine says of NVIDIA's binary interfaces is what NVIDIA's headers say; no GPU is needed to see that."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpu.fake_devices import cxx_compiler
from gpu.installed_files import installed_file

HERE = Path(__file__).resolve().parent


def test_functions_structures_and_numbers_are_those_of_nvidias_headers() -> None:
    headers = {
        installed_file("nvidia-cuda-runtime-cu12", "cuda.h").parent,
        installed_file("nvidia-cufile-cu12", "cufile.h").parent,
    }
    native = HERE.parent.parent / "native"
    paths = [f"-I{native}", *(f"-isystem{folder}" for folder in headers)]
    command = [cxx_compiler(), "-std=c++20", "-fsyntax-only", *paths, HERE / "nvidia_headers.cc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
