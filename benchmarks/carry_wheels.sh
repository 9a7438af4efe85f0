#!/usr/bin/env bash
# Gathers the wheels that a CUDA machine without a network needs for tests/gpu and bench_gpu.py, beside its own torch
# and numpy: this project (with libcurl inside), its dependencies, pytest, and the rivals. README.md has the next steps.
#
#   benchmarks/carry_wheels.sh 3.12 wheels    # that machine's Python; run make wheel PYTHON=python3.12 first
set -euo pipefail
python_version=$1
folder=$2
cd "$(dirname "$0")/.."
mkdir -p "$folder"
cp dist/*-cp"${python_version/./}"-*.whl "$folder"

# pip accepts only the exact platform numbers that are named.
platforms=()
for number in 2_17 2_24 2_27 2_28 2_30 2_31 2_34 2_35; do
  platforms+=(--platform "manylinux_${number}_$(uname -m)")
done
platforms+=(--platform "manylinux2014_$(uname -m)" --platform any)
gather() {
  .venv/bin/pip download --quiet --only-binary=:all: --python-version "$python_version" --implementation cp \
    "${platforms[@]}" --dest "$folder" "$@"
}
gather aiohttp click fsspec pluggy pytest tqdm
# Without their dependencies: torch alone has gigabytes.
gather --no-deps fastsafetensors==0.5.0 instanttensor==0.2.2 runai-model-streamer==0.17.0 safetensors==0.9.0rc1 \
  humanize typer rich shellingham markdown-it-py mdurl
du -sh "$folder"
