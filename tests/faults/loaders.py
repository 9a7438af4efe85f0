"""This project and other loaders, each called as its documentation says, in a process of its own.

``python -m faults.loaders NAME`` reads ``[url, storage options, options of this project's]`` from its input, loads, and
tells what came of it as a line of JSON: seconds, a checksum of each tensor, and this project's report.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

RANGE_BYTES = 16 << 20

Loaded = dict[str, Any]
Load = Callable[[str, Any, Mapping[str, Any]], tuple[Loaded, "dict[str, Any]"]]


def load_with_streamer(url: str, given: Any, options: Mapping[str, Any]) -> tuple[Loaded, dict[str, Any]]:
    """Load with this project."""
    import streamer

    with streamer.stream(url, storage_options=given, options=streamer.Options(**options), progress=False) as stream:
        loaded = dict(stream)
    return loaded, stream.report.to_dict()


def load_with_s3fs(url: str, given: Any, options: Mapping[str, Any]) -> tuple[Loaded, dict[str, Any]]:
    """Fetch shard after shard with s3fs, and let safetensors make tensors of them."""
    from safetensors.torch import load

    files, paths = _shards(url, given)
    found: Loaded = {}
    for path in paths:
        found |= load(files.cat_file(path))
    return found, {}


def load_with_s3fs_ranges(url: str, given: Any, options: Mapping[str, Any]) -> tuple[Loaded, dict[str, Any]]:
    """Fetch ranges of 16 MiB with s3fs, four at a time: one that was cut is asked for again, a whole shard is not."""
    from safetensors.torch import load

    files, paths = _shards(url, given)
    found: Loaded = {}
    for path in paths:
        starts = list(range(0, files.size(path), RANGE_BYTES))
        parts = files.cat_ranges(
            [path] * len(starts), starts, [start + RANGE_BYTES for start in starts], batch_size=4, on_error="raise"
        )
        found |= load(b"".join(parts))
    return found, {}


def load_with_runai(url: str, given: Any, options: Mapping[str, Any]) -> tuple[Loaded, dict[str, Any]]:
    """Stream all shards with Run:ai's model streamer, and keep the tensors."""
    from runai_model_streamer import SafetensorsStreamer

    _, paths = _shards(url, given)
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([f"s3://{path}" for path in paths], device="cpu")
        return {name: tensor.clone() for name, tensor in streamer.get_tensors()}, {}


LOADERS: dict[str, Load] = {
    "streamer": load_with_streamer,
    "s3fs": load_with_s3fs,
    "s3fs_ranges": load_with_s3fs_ranges,
    "runai": load_with_runai,
}


def environment_of(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Say to native S3 clients, which read the environment, what `given` says to s3fs."""
    if not given or "endpoint_url" not in given:
        return dict(os.environ)
    return {
        **os.environ,
        "AWS_ENDPOINT_URL": str(given["endpoint_url"]),
        "AWS_ACCESS_KEY_ID": str(given["key"]),
        "AWS_SECRET_ACCESS_KEY": str(given["secret"]),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }


def checksum(tensor: Any) -> int:
    """Compute the CRC-32 of a tensor's bytes."""
    import torch

    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy())


def _shards(url: str, given: Any) -> tuple[Any, list[str]]:
    import s3fs

    files = s3fs.S3FileSystem(**given, skip_instance_cache=True, use_listings_cache=False)
    return files, [path for path in sorted(files.ls(url)) if path.endswith(".safetensors")]


def main() -> None:
    """Load once, and tell."""
    import torch  # noqa: F401 (no part of the time)

    url, given, options = json.loads(sys.stdin.readline())
    started = time.monotonic()
    try:
        loaded, report = LOADERS[sys.argv[1]](url, given, options)
    except Exception as error:
        reported = {"error": f"{type(error).__name__}: {error}"}
    else:
        reported = {"report": report}
    reported["seconds"] = time.monotonic() - started
    if "report" in reported:
        reported["checksums"] = {name: checksum(tensor) for name, tensor in loaded.items()}
    print(json.dumps(reported), flush=True)
    os._exit(0)  # a rival's threads may not end


if __name__ == "__main__":
    main()
