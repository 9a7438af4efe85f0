#!/usr/bin/env bash
# Gathers what a CUDA machine without a network needs for tests/gpu and bench_gpu.py, beside its own torch and numpy: this
# project's wheel (libcurl inside), what it imports, pytest, and the rivals. README.md says how to go on there.
#
#   benchmarks/carry_wheels.sh 3.12 wheels    # the Python of that machine, after make wheel PYTHON=python3.12
set -euo pipefail
python_version=$1
folder=$2
cd "$(dirname "$0")/.."
mkdir -p "$folder"
cp dist/*-cp"${python_version/./}"-*.whl "$folder"

# pip matches the platform's number exactly.
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
# Without what they require: torch would come with gigabytes.
gather --no-deps fastsafetensors==0.5.0 instanttensor==0.2.2 runai-model-streamer==0.17.0 safetensors==0.9.0rc1 \
  humanize typer rich shellingham markdown-it-py mdurl
du -sh "$folder"
