"""Measure the cost of ``verify=``: load the same warm files without it, with a manifest, and with stored digests.

    python benchmarks/bench_verify.py [--size 1000000000] [--rounds 3]

Guarantees: each load is a fresh process, whose digest of sampled bytes is compared; modes alternate, in another order
each round. Prints medians. Local files have no stored digests: for the last two rows, the store is replaced by one that
returns digests of the files, which were computed before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from checkpoint import expected_tensors, make_or_reuse
from measure import MASK, Measurement, bring_into_page_cache, tensor_digest, touch_and_free

MODES = {
    "off": ("off", None),
    "manifest": ("manifest", None),
    "manifest, sha256": ("manifest", None),
    "auto, crc64nvme": ("auto", "crc64nvme"),
    "auto, sha256": ("auto", "sha256"),
    "auto, md5": ("auto", "md5"),
}


def digest_of(path: Path, algorithm: str) -> str:
    from streamer import _native

    data = path.read_bytes()
    if algorithm == "crc64nvme":
        return f"{_native.crc(algorithm, data):016x}"
    return hashlib.new(algorithm, data).hexdigest()


def computing(paths: list[Path]) -> dict[str, float]:
    """Return the CPU seconds per GB that digests cost, for bytes in memory that no processor cache holds."""
    from streamer import _native

    costs: dict[str, float] = {}
    data = b"".join(path.read_bytes() for path in paths)
    for name in ("crc32c", "crc64nvme", "sha256", "md5"):
        started = time.process_time()
        if name.startswith("crc"):
            _native.crc(name, data)
        else:
            hashlib.new(name, data)
        costs[name] = (time.process_time() - started) / len(data) * 1e9
    return costs


def load(folder: Path, mode: str, digests: dict[str, str]) -> dict[str, float]:
    """Load once in this process."""
    import torch

    import streamer
    from streamer.backends.posix.store import PosixStore
    from streamer.core.store.digests import ObjectDigest, PartDigest
    from streamer.core.store.sources import ObjectInfo

    verify, algorithm = MODES[mode]
    if algorithm is not None:

        def digest(_: PosixStore, info: ObjectInfo) -> ObjectDigest:
            return ObjectDigest(algorithm, (PartDigest(info.size_bytes or 0, digests[Path(info.path).name]),))

        PosixStore.digest = digest  # type: ignore[attr-defined]
    torch.zeros(1)
    paths = sorted(folder.glob("*.safetensors"))
    bring_into_page_cache(paths)
    touch_and_free(sum(path.stat().st_size for path in paths), huge_pages=True)
    with Measurement() as measured:
        with streamer.stream(folder, verify=verify, progress=False) as stream:  # type: ignore[arg-type]
            loaded = dict(stream)
        report = stream.report
    if report.is_verified != (verify != "off"):
        raise SystemExit(f"not verified: {report.verified}")
    found = [tensor_digest(name, tensor) for name, tensor in loaded.items()]
    return {
        "seconds": measured.seconds,
        "cpu_seconds": measured.cpu_seconds,
        "bytes": sum(size for size, _ in found),
        "digest": sum(digest for _, digest in found) & MASK,
    }


def manifest_for(mode: str, folder: Path) -> dict[str, float]:
    """Write the manifest of a mode, if it has one; return the seconds by digest."""
    import streamer

    if MODES[mode][0] != "manifest":
        return {}
    digest: Literal["crc32c", "sha256"] = "sha256" if mode.endswith("sha256") else "crc32c"
    return {digest: streamer.write_manifest(folder, progress=False, digest=digest).seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "MODE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        folder, mode = Path(arguments.one[0]), arguments.one[1]
        print(json.dumps(load(folder, mode, json.loads(sys.stdin.read()))))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = make_or_reuse(folder, arguments.size, 4)
        expected = expected_tensors(paths)
        written = {}
        alone = computing(paths)
        figures: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for number in range(arguments.rounds):
            for mode in random.Random(number).sample(list(MODES), len(MODES)):
                algorithm = MODES[mode][1]
                written |= manifest_for(mode, folder)
                digests = {path.name: digest_of(path, algorithm) for path in paths} if algorithm else {}
                command = [sys.executable, __file__, "--one", made, mode]
                done = subprocess.run(command, input=json.dumps(digests), capture_output=True, text=True, check=True)
                figure = json.loads(done.stdout)
                if (figure["bytes"], figure["digest"]) != (expected["bytes"], expected["digest"]):
                    raise SystemExit(f"{mode}: the bytes differ from the files")
                figures[mode].append(figure)
    print(f"{expected['bytes'] / 1e9:.2f} GB in {len(paths)} files, page cache, {arguments.rounds} rounds")
    for digest, seconds in written.items():
        print(f"write_manifest, {digest} {expected['bytes'] / 1e9 / seconds:.2f} GB/s")
    for name, cost in alone.items():
        print(f"computing {name:<10}{cost:.3f} CPU-s/GB")
    print(f"{'verify':<18}{'median GB/s':>12}{'min..max':>14}{'CPU-s/GB: median':>18}{'best':>7}")
    for mode, found in figures.items():
        rates = sorted(each["bytes"] / 1e9 / each["seconds"] for each in found)
        cpu = [each["cpu_seconds"] / each["bytes"] * 1e9 for each in found]
        spread = f"{rates[0]:.2f}..{rates[-1]:.2f}"
        print(f"{mode:<18}{statistics.median(rates):>12.2f}{spread:>14}{statistics.median(cpu):>18.3f}{min(cpu):>7.3f}")


if __name__ == "__main__":
    main()
