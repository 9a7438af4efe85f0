#!/usr/bin/env bash
# Measures a machine with a GPU within a few minutes: the tests of a real device, each contestant in fresh processes,
# the number of readers and the size of the ring, ranks, HTTP, the timeline of a load, transformers, and cold files.
# The machine needs no network: carry_wheels.sh gathers the wheels on another machine.
#
#   benchmarks/gpu_session.sh OUT [GIB]             # in a copy of the checkout, with the wheels installed
#   benchmarks/gpu_session.sh OUT 0.1 fake          # the same steps against the fake driver, to see that they work
#
# Each step writes its own file into OUT, and ends after STEP_S seconds (150), so that a step that hangs costs no other
# step. The exit code is 1 if a step failed.
set -uo pipefail
out=$1
gib=${2:-6}
fake=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpu-session-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"
failed=0
# Steps run in another folder, because the folder above this one has a package `core`, which is not streamer.core.
step() {
  local name=$1
  shift
  echo "== $name (after $SECONDS s)"
  (cd "$scratch" && timeout "${STEP_S:-150}" "$@") >"$out/$name.txt" 2>&1 || { failed=1; echo "   FAILED"; }
  tail -n 25 "$out/$name.txt"
}

loads() { step "$1" "$python" "$here/gpu_loads.py" --gib "$gib" --folder "$scratch" "${library[@]}" "${@:2}"; }

library=()
if [ "$fake" = fake ]; then
  library=(--fake "$scratch/libfake_cuda.so")
  c++ -std=c++20 -O1 -shared -fPIC -pthread "$here/../tests/gpu/fake_driver/fake_cuda.cc" -o "$scratch/libfake_cuda.so"
  loads loads --shards 4 --rounds 1 --sections rivals,ranks,host,http --json "$out/loads.json"
  step transformers "$python" "$here/gpu_transformers.py" --gib 0.05 --rounds 1 --device cpu \
    --folder "$scratch/llama" --json "$out/transformers.json"
  exit $failed
fi
step machine bash -c 'nvidia-smi --query-gpu=name,pcie.link.gen.max,driver_version --format=csv,noheader
  nproc; uname -r; lscpu | grep -E "Model name|L3"'
step tests "$python" -m pytest -c /dev/null --noconftest -q -rs -p no:cacheprovider \
  -o faulthandler_timeout=40 "$here/../tests/gpu/test_real_gpu.py"
loads rivals --rounds 2 --sections rivals --json "$out/rivals.json"
step timeline "$python" "$here/gpu_timeline.py" "$out/timeline" "$scratch"/model/*.safetensors
loads ranks --rounds 1 --sections ranks --json "$out/ranks.json"
loads http --rounds 1 --sections http --json "$out/http.json"
loads host --rounds 2 --sections host --json "$out/host.json"
step transformers "$python" "$here/gpu_transformers.py" --rounds 1 --json "$out/transformers.json" --folder "$scratch/llama"
loads sweep --rounds 1 --sections sweep --json "$out/sweep.json"
step cold "$python" "$here/bench_gpu.py" --gib 4 --rounds 1 --sections cold --folder "$scratch" --json "$out/cold.json"
exit $failed
