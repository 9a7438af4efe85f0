#!/usr/bin/env bash
# Build the wheel for 64-bit ARM on another processor, for the Python version that runs this script.
#
#   STREAMER_AARCH64=FOLDER build_aarch64.sh DIST
#
# FOLDER has root/ (aarch64_root.sh) and curl/ (build_curl.sh). The build uses this machine's Python headers. They take
# sizes and byte order from the compiler, and these are the same on every little-endian 64-bit Linux.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dist=$(mkdir -p "$1" && cd "$1" && pwd)
version=$(python -c 'import sys; print("%d%d" % sys.version_info[:2])')

export _PYTHON_HOST_PLATFORM=linux-aarch64 # the tag of the wheel
export SETUPTOOLS_EXT_SUFFIX=.cpython-$version-aarch64-linux-gnu.so # the name of the module
rm -rf "$STREAMER_AARCH64/wheel"
python -m build --wheel --no-isolation --outdir "$STREAMER_AARCH64/wheel" -Cbuild-dir="$STREAMER_AARCH64/cmake" \
  -Ccmake.define.CMAKE_TOOLCHAIN_FILE="$here/aarch64.cmake" -Ccmake.define.PYBIND11_USE_CROSSCOMPILING=ON \
  -Ccmake.define.STREAMER_CURL_BILL="$STREAMER_AARCH64/curl/libcurl.cdx.json;$STREAMER_AARCH64/root/libraries.cdx.json"
unset _PYTHON_HOST_PLATFORM
libraries=$STREAMER_AARCH64/curl/lib:$STREAMER_AARCH64/root/usr/lib/aarch64-linux-gnu
auditwheel repair --ldpaths "$libraries:/usr/aarch64-linux-gnu/lib" --wheel-dir "$dist" "$STREAMER_AARCH64"/wheel/*.whl
