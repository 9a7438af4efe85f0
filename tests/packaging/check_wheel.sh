#!/usr/bin/env bash
# Prove that a wheel works by itself: in a clean environment, away from the checkout, with its own libcurl, it loads a
# checkpoint bit for bit. Needs no compiler and no headers.
#
#   [PYTHON=python3] [TORCH='torch==2.13.0'] tests/packaging/check_wheel.sh WHEEL
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
wheel=$(realpath "${1:?name the wheel}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
# shellcheck disable=SC2086  # TORCH may hold options, too
"$work/venv/bin/pip" install --quiet ${TORCH:-torch==2.13.0}  # from pip's cache after `make`
"$work/venv/bin/pip" install --quiet "$wheel" safetensors
"$work/venv/bin/pip" check

cd "$work"  # so that nothing is imported from the checkout
"$work/venv/bin/python" "$root/examples/make_checkpoint.py" model --size 1MiB --shards 2
"$work/venv/bin/python" -I "$root/tests/packaging/load_with_wheel.py" model
