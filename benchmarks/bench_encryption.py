"""Time loads and saves of an encrypted and a plain checkpoint, also with Tensorizer if it is installed.

    python benchmarks/bench_encryption.py [--gib 1] [--rounds 5] [--s3] [--json out.json]

All contestants run in one process and alternate, so that they share the machine's good and bad moments; the ratio is of
their medians. Files are in the page cache: the plain load then runs at the speed of memory, which is the hardest case
for a cipher. `streamer.save` writes past the page cache, and Tensorizer through it, so every file is read into it
before the clock starts, and the loader's memory is touched then. With ``--s3``, a real server on loopback has them.
Tensors are compared after the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

import torch  # noqa: E402  the path comes first
from measure import bring_into_page_cache, touch_and_free  # noqa: E402  no package

import streamer  # noqa: E402

KEY = bytes(range(32))
TENSORS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    elements = int(arguments.gib * (1 << 30)) // TENSORS // 4
    tensors = {f"layer.{number}": torch.rand(elements // 1024, 1024) for number in range(TENSORS)}
    size_bytes = sum(each.nbytes for each in tensors.values())
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.s3:
            from servers.seaweedfs import SeaweedServer

            with SeaweedServer() as server:
                server.make_bucket("bench")
                seconds = measured(tensors, "s3://bench", arguments.rounds, server.storage_options())
        else:
            seconds = measured(tensors, scratch, arguments.rounds, None)
    report(seconds, size_bytes)
    if arguments.json:
        arguments.json.write_text(json.dumps(seconds, indent=2))


def measured(
    tensors: dict[str, torch.Tensor], place: str, rounds: int, storage_options: dict[str, Any] | None
) -> dict[str, list[float]]:
    """Return the seconds of each run, by contestant; the first round is not counted."""
    how = {"storage_options": storage_options, "progress": False}
    runs: dict[str, Callable[[], Any]] = {}
    for name, key in (("plain", None), ("encrypted", KEY)):
        runs[f"save, {name}"] = lambda name=name, key=key: streamer.save(
            tensors, f"{place}/{name}", key=key, overwrite=True, **how
        )
        runs[f"load, {name}"] = lambda name=name, key=key: streamer.load(f"{place}/{name}", key=key, **how)
    if storage_options is None:
        runs.update(of_tensorizer(tensors, place))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    size_bytes = sum(each.nbytes for each in tensors.values())
    for number in range(rounds + 1):
        for name, run in runs.items():
            if name.startswith("load"):
                prepare(name, place if storage_options is None else None, size_bytes)
            began = time.perf_counter()
            found = run()
            elapsed = time.perf_counter() - began
            if isinstance(found, dict) and not all(torch.equal(found[each], tensors[each]) for each in tensors):
                raise SystemExit(f"{name}: wrong tensor")
            del found
            if number:
                seconds[name].append(elapsed)
    return seconds


def prepare(name: str, folder: str | None, size_bytes: int) -> None:
    """Bring the files of a folder into the page cache, and touch the memory that the loader uses, in its pages."""
    if folder is not None:
        bring_into_page_cache(path for path in Path(folder).rglob("*") if path.is_file())
    touch_and_free(size_bytes, huge_pages="Tensorizer" not in name)


def of_tensorizer(tensors: dict[str, torch.Tensor], place: str) -> dict[str, Callable[[], Any]]:
    """Return the runs of Tensorizer; an empty mapping if it is not installed."""
    try:
        from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer
    except ImportError:
        return {}

    def save(name: str, encryption: Any) -> None:
        serializer = TensorSerializer(f"{place}/{name}.tensors", encryption=encryption)
        serializer.write_state_dict(tensors)
        serializer.close()

    def load(name: str, encryption: Any) -> dict[str, torch.Tensor]:
        with TensorDeserializer(f"{place}/{name}.tensors", device="cpu", encryption=encryption) as found:
            return {each: found[each] for each in tensors}

    return {
        "save, Tensorizer plain": lambda: save("plain", None),
        "save, Tensorizer encrypted": lambda: save("encrypted", EncryptionParams(key=KEY)),
        "load, Tensorizer plain": lambda: load("plain", None),
        "load, Tensorizer encrypted": lambda: load("encrypted", DecryptionParams.from_key(KEY)),
    }


def report(seconds: dict[str, list[float]], size_bytes: int) -> None:
    """Print the median and the spread of each contestant, and the ratios."""
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        rate = size_bytes / medians[name] / 1e9
        print(f"{name:28} {medians[name]:7.3f} s ({min(each):.3f} to {max(each):.3f}), {rate:5.2f} GB/s")
    for what in ("save", "load"):
        ratio = medians[f"{what}, plain"] / medians[f"{what}, encrypted"]
        print(f"{what}: encrypted has {ratio:.2f} of the speed of plain")


if __name__ == "__main__":
    main()
