"""Count how many blocks per second the scheduler hands out to readers whose sources answer at once.

    python benchmarks/bench_scheduler.py [--rounds 5] [--before TREE]

A C++ program uses the engine's own scheduler. It is compiled from this tree, and from a second tree for comparison.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("base", "cuda", "integrity", "io", "plan", "schedule")
OTHERS = ("test", "fixture", "fake", "direct_read", "file_reader", "read_ring", "block_retries")  # not needed here
CASES = {  # readers, items, limit of held bytes, and the largest item if items do not have 4 KiB
    "64 readers, 100 MB": ("64", "300000", "100000000"),
    "64 readers, 100 items": ("64", "300000", "409600"),
    "4 readers, 100 items": ("4", "300000", "409600"),
    "4 readers, large items": ("4", "400", "268435456", "100000000"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    trees = {"now": HERE.parent} | ({"before": arguments.before} if arguments.before else {})
    with tempfile.TemporaryDirectory() as folder:
        programs = {name: compiled(tree, f"{folder}/{name}") for name, tree in trees.items()}
        for case, given in CASES.items():
            for _ in range(arguments.rounds):
                for name, program in programs.items():
                    done = subprocess.run([program, *given], capture_output=True, text=True, check=True)
                    print(f"{case:24}{name:8}{done.stdout.strip()}")


def compiled(tree: Path, program: str) -> str:
    """Compile the program with the sources of a tree; return its path."""
    native = tree / "native"
    sources = [str(each) for name in FOLDERS for each in sorted((native / name).glob("*.cc"))]
    needed = [each for each in sources if not any(word in Path(each).name for word in OTHERS)]
    compiler = os.environ.get("CXX") or shutil.which("c++") or "c++"
    command = [compiler, "-std=c++20", "-O2", "-pthread", f"-I{native}", str(HERE / "scheduler_blocks.cc"), *needed]
    subprocess.run([*command, "-ldl", "-o", program], check=True)
    return program


if __name__ == "__main__":
    main()
