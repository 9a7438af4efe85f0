"""Time ``streamer.save`` and other ways to save, to a disk and to S3.

The other way to a disk is safetensors' ``save_file``. The other ways to S3 are a C++ program that only sends the parts
(the limit), ``save_file`` followed by s3fs's ``put``, and ``dcp.save`` with torch's ``FsspecWriter`` and with ours.

    python benchmarks/bench_save.py [--gib 1] [--rounds 5] [--json out.json]

S3 is a real server on loopback. Every run is a fresh process that imports, makes its tensors and connects by writing a
small object before the clock starts; contestants alternate. `save` computes the digest of each tensor and flushes files
to the disk. `save_file` does neither, so another row flushes the file afterwards. The written tensors are compared by
size and CRC32 after the clock has stopped. The time of the C++ program excludes the request that begins the upload.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from measure import Measurement, summary_of  # noqa: E402  its folder is no package

DISK = ("save to a disk", "save_file, flushed", "save_file")
RAW = "raw curl 8 x 16 MiB"
S3 = ("save to S3", RAW, "save_file, s3fs.put", "dcp.save, FsspecWriter", "dcp.save, ours")
PART_BYTES = 16 << 20
TENSORS = 16
METADATA = {"format": "pt"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    from servers.seaweedfs import SeaweedServer

    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in DISK + S3}
    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        server.make_bucket("bench")
        for number in range(arguments.rounds):
            for names in (DISK, S3):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    runs[name].append(measured(name, arguments.gib, server.storage_options(), scratch))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit("the contestants' files differ")
    report(runs)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2))


def measured(name: str, gib: float, options: dict[str, Any], scratch: str) -> dict[str, Any]:
    """Run one contestant in a separate process."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        command = [sys.executable, __file__, "--child", name, str(gib), json.dumps(options), folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return run


def child(name: str, gib: str, options_text: str, folder: str) -> None:
    import torch

    torch.manual_seed(0)
    count = int(float(gib) * (1 << 30)) // TENSORS // 4
    tensors = {f"layer.{number}.weight": torch.randn(count) for number in range(TENSORS)}
    options = json.loads(options_text)
    run, written = _contestant(name, tensors, options, folder)
    with Measurement() as measurement:
        told = run()
    figures = json.loads(told) if isinstance(told, bytes) else measurement.to_dict()
    digest = size_bytes = 0
    for _, tensor in sorted(written().items()):
        piece = memoryview(tensor.numpy()).cast("B")
        digest, size_bytes = zlib.crc32(piece, digest), size_bytes + piece.nbytes
    print(json.dumps({**figures, "digest": digest, "bytes": size_bytes}))


# The first function is timed, and may return the figures of a program. The second reads the tensors that it wrote.
Contestant = tuple[Callable[[], object], Callable[[], dict[str, Any]]]


def _contestant(name: str, tensors: dict[str, Any], options: dict[str, Any], folder: str) -> Contestant:
    if name == RAW:
        return _raw(tensors, options, folder)
    if name.startswith("dcp.save"):
        return _by_dcp(name, tensors, options, folder)
    if "S3" in name or "s3fs" in name:
        return _to_s3(name, tensors, options, folder)
    return _to_disk(name, tensors, folder)


def _to_disk(name: str, tensors: dict[str, Any], folder: str) -> Contestant:
    from safetensors.torch import load_file, save_file

    import streamer

    file = f"{folder}/model.safetensors"

    def save() -> None:
        if name == "save to a disk":
            streamer.save(tensors, folder, progress=False)
            return
        save_file(tensors, file, METADATA)
        if "flushed" in name:
            with open(file, "rb") as saved:
                os.fsync(saved.fileno())

    streamer.save({"a": tensors["layer.0.weight"][:10].clone()}, f"{folder}/small")
    return save, lambda: load_file(file)


def _to_s3(name: str, tensors: dict[str, Any], options: dict[str, Any], folder: str) -> Contestant:
    import fsspec
    from safetensors.torch import load, save_file

    import streamer

    file, remote = f"{folder}/model.safetensors", f"s3://bench/{Path(folder).name}/model.safetensors"
    fs = fsspec.filesystem("s3", **options)

    def save() -> None:
        if name == "save to S3":
            streamer.save(tensors, remote, storage_options=options, progress=False)
            return
        save_file(tensors, file, METADATA)
        fs.put_file(file, remote)

    def written() -> dict[str, Any]:
        fs.invalidate_cache()
        return load(fs.cat_file(remote))

    small = f"s3://bench/{Path(folder).name}-small"
    if name == "save to S3":
        streamer.save({"a": tensors["layer.0.weight"][:10].clone()}, small, storage_options=options)
    else:
        fs.pipe_file(small, b"{}")
    return save, written


def _raw(tensors: dict[str, Any], options: dict[str, Any], folder: str) -> Contestant:
    from botocore.session import Session
    from raw_programs import compiled
    from safetensors.torch import load, save_file

    file, target = f"{folder}/model.safetensors", {"Bucket": "bench", "Key": f"{Path(folder).name}/model.safetensors"}
    save_file(tensors, file, METADATA)
    keys = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
    client = Session().create_client("s3", region_name="us-east-1", endpoint_url=options["endpoint_url"], **keys)
    upload = {**target, "UploadId": client.create_multipart_upload(**target)["UploadId"]}
    parts = -(-os.path.getsize(file) // PART_BYTES)
    urls = [client.generate_presigned_url("upload_part", {**upload, "PartNumber": n + 1}) for n in range(parts)]
    urls.append(client.generate_presigned_url("complete_multipart_upload", upload))
    command = [compiled("raw_http_writer"), "--part", str(PART_BYTES), file]

    def run() -> bytes:
        return subprocess.run(command, input="\n".join(urls).encode(), stdout=subprocess.PIPE, check=True).stdout

    return run, lambda: load(client.get_object(**target)["Body"].read())


def _by_dcp(name: str, tensors: dict[str, Any], options: dict[str, Any], folder: str) -> Contestant:
    import warnings

    import fsspec
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

    import streamer

    warnings.simplefilter("ignore")  # one process saves
    remote = f"s3://bench/{Path(folder).name}/dcp"
    is_ours = name.endswith("ours")
    fsspec.filesystem("s3", **options).pipe_file(f"{remote}-small", b"{}")

    def run() -> None:
        ours = streamer.dcp.StorageWriter(remote, storage_options=options) if is_ours else None
        dcp.save(tensors, storage_writer=ours or FsspecWriter(remote, **options), no_dist=True)

    def written() -> dict[str, Any]:
        read = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        dcp.load(read, storage_reader=FsspecReader(remote, **options), no_dist=True)
        return read

    return run, written


def report(runs: dict[str, list[dict[str, Any]]]) -> None:
    medians = {name: statistics.median(run["seconds"] for run in each) for name, each in runs.items()}
    for name, each in runs.items():
        print(f"{name:22} {summary_of(each)}")
    for one, others in (("save to a disk", DISK[1:]), ("save to S3", S3[1:])):
        ratios = ", ".join(f"{medians[other] / medians[one]:.2f} x {other}" for other in others)
        print(f"{one}: {ratios}")


if __name__ == "__main__":
    main()
