"""C++ readers that measure the limits, compiled on demand, as rows beside the contestants.

Guarantees: a program is compiled again if its source, or a shared header, is newer. The programs get the sizes of the
objects as arguments, so each of their requests carries data.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contestants import Target

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build" / "benchmarks"
FLAGS = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-pthread"]
# Each library with its package in Debian and Ubuntu.
LIBRARIES = {
    "raw_http_reader": ("-lcurl", "libcurl4-openssl-dev"),
    "raw_http_writer": ("-lcurl", "libcurl4-openssl-dev"),
    "raw_nfs_reader": ("-lnfs", "libnfs-dev"),
    "raw_ring_reader": ("-luring", "liburing-dev"),
}


def compiled(name: str) -> str:
    """Compile ``NAME.cc`` if necessary, and return the path of the program.

    Raises:
        FileNotFoundError: there is no C++ compiler.
        RuntimeError: the program does not compile, most likely because headers of its library are missing.
    """
    source, program = HERE / f"{name}.cc", BUILD / name
    newest = max(file.stat().st_mtime for file in (source, *HERE.glob("*.h")))
    if program.exists() and program.stat().st_mtime > newest:
        return str(program)
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler: apt-get install -y g++")
    BUILD.mkdir(parents=True, exist_ok=True)
    library, package = LIBRARIES.get(name, ("", ""))
    command = [compiler, *FLAGS, str(source), "-o", str(program), *filter(None, [library])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}\nneeds: apt-get install -y g++ {package}")
    return str(program)


@dataclass(frozen=True)
class RawRow:
    """A row of the tables whose process is a C++ program. `command(target, sizes)` returns its arguments."""

    name: str
    command: Callable[[Target, list[int]], list[str]]
    sections: tuple[str, ...]


def _file_reader(name: str, sections: tuple[str, ...], *options: str, program: str = "raw_file_reader") -> RawRow:
    return RawRow(name, lambda target, _: [compiled(program), *options, *target.paths], sections)


def _direct_reader(name: str, *options: str, program: str = "raw_file_reader") -> RawRow:
    return _file_reader(name, ("file-cold",), "--direct", *options, program=program)


def http_reader(name: str, *options: str) -> RawRow:
    """Return a row of `raw_http_reader` with these options."""

    def command(target: Target, sizes: list[int]) -> list[str]:
        base = f"{target.endpoint}/"
        urls = [path.replace("s3://", base) + f"={size}" for path, size in zip(target.paths, sizes, strict=True)]
        authority = ["--cacert", target.ca_file] if target.ca_file else []
        return [compiled("raw_http_reader"), *options, *authority, *urls]

    return RawRow(name, command, ("http", "https"))


# Several settings, because the best setting depends on the machine; the limit is the best row.
RAW_ROWS = (
    _file_reader("raw buffered 2 x 8 MiB", ("file-warm", "file-cold"), "--threads", "2", "--block", str(8 << 20)),
    _file_reader("raw buffered 4 x 4 MiB", ("file-warm", "file-cold"), "--threads", "4", "--block", str(4 << 20)),
    _direct_reader("raw direct 16 x 4 MiB", "--threads", "16", "--block", str(4 << 20)),
    _direct_reader("raw direct 16 x 512 KiB", "--threads", "16", "--block", str(512 << 10)),
    _direct_reader("raw io_uring 16 x 4 MiB", "--in-flight", "16", "--block", str(4 << 20), program="raw_ring_reader"),
    _direct_reader(
        "raw io_uring 64 x 512 KiB", "--in-flight", "64", "--block", str(512 << 10), program="raw_ring_reader"
    ),
    http_reader("raw curl 2 x 8 x 2 MiB", "--reactors", "2", "--in-flight", "8", "--block", str(2 << 20)),
    http_reader("raw curl 2 x 8 x 8 MiB", "--reactors", "2", "--in-flight", "8", "--block", str(8 << 20)),
)
