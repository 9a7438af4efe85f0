"""Runs in an environment of its own: imports streamer and loads each place; needs no library of the tests.

Reads JSON from standard input, ``{"places": {name: [uri, options]}, "digests": {tensor: sha256}}``, and writes JSON:
the versions found here, and for each place None or what went wrong.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

LIBRARIES = (*("torch", "numpy", "fsspec", "s3fs", "aiobotocore", "gcsfs", "adlfs", "aiohttp", "huggingface_hub"),)
WEIGHT = bytes(range(256))


def main() -> None:
    asked = json.load(sys.stdin)
    answer: dict[str, Any] = {"python": platform.python_version(), "versions": _versions(), "places": {}}
    for name, (uri, options) in asked["places"].items():
        answer["places"][name] = _fault(lambda: _load(uri, options), asked["digests"])  # noqa: B023 (called at once)
    answer["places"]["dcp"] = _fault(_load_dcp, {"weight": hashlib.sha256(WEIGHT).hexdigest()})
    json.dump(answer, sys.stdout)


def _versions() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def _fault(load: Callable[[], dict[str, Any]], digests: dict[str, str]) -> str | None:
    try:
        got = {name: _digest(tensor) for name, tensor in load().items()}
    except BaseException:  # as a CheckpointException of DCP is
        return traceback.format_exc()
    return None if got == digests else "other tensors than the file's"


def _load(uri: str, options: dict[str, Any]) -> dict[str, Any]:
    import streamer  # here, so that a failed import is the fault of each place

    with tempfile.TemporaryDirectory() as folder:
        if "simplecache" in options:
            options["simplecache"]["cache_storage"] = folder
        return streamer.load(uri, storage_options=options or None, progress=False)


def _load_dcp() -> dict[str, Any]:
    """Load what this version of torch saves."""
    import torch
    import torch.distributed.checkpoint as dcp

    import streamer

    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"weight": torch.tensor(list(WEIGHT), dtype=torch.uint8)}, checkpoint_id=folder)
        loaded = {"weight": torch.zeros(len(WEIGHT), dtype=torch.uint8)}
        dcp.load(loaded, storage_reader=streamer.dcp.StorageReader(folder))
    return loaded


def _digest(tensor: Any) -> str:
    """Read the memory itself: `Tensor.numpy` knows neither BF16 nor a torch without NumPy."""
    return hashlib.sha256(ctypes.string_at(tensor.data_ptr(), tensor.nbytes)).hexdigest()


if __name__ == "__main__":
    main()
