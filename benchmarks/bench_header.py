"""Measure the time and memory to parse a safetensors header, by its number of tensors and its form.

Promised for the compact form on a quiet machine: 100 000 tensors in 0.2 s, 10**6 in 1 s, and memory up to 10 times
the header. Each line is measured in a process of its own: the allocator's peak counts once.

    python benchmarks/bench_header.py --tensors 100000 1000000 --form compact spaced distinct foreign
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from struct import pack

from streamer.core.format.header import parse_header

FORMS = {
    "compact": "as the reference writes it",
    "spaced": "as Python's json.dumps writes it",
    "distinct": "compact, and no two tensors have the same shape",
    "foreign": "fields in another order, so that the JSON reader reads them",
}


def header_of(tensors: int, form: str) -> tuple[bytes, int]:
    """Return a header and the size of its object. The header is built in pieces, so that parsing sets the peak."""
    text = bytearray(b"{")
    offset = 0
    for index in range(tensors):
        shape = [index + 1] if form == "distinct" else [2, 4]
        length = shape[0] if form == "distinct" else 16
        fields = {"dtype": "U8" if form == "distinct" else "BF16", "shape": shape}
        fields["data_offsets"] = [offset, offset + length]
        if form == "foreign":
            fields = dict(reversed(fields.items()))
        separators = (", ", ": ") if form == "spaced" else (",", ":")
        member = json.dumps({f"layers.{index // 100}.weight_{index % 100}": fields}, separators=separators)
        text += (separators[0] if index else "").encode() + member[1:-1].encode()
        offset += length
    text += b"}"
    return pack("<Q", len(text)) + text, 8 + len(text) + offset


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(tensors: int, form: str, repeats: int) -> str:
    """Parse in this process and describe the result in one line."""
    data, object_size = header_of(tensors, form)
    before = peak_bytes()
    seconds, cpu_seconds = [], []
    growth = 0.0
    for repeat in range(repeats):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        parse_header(data, object_size, uri="memory")
        cpu_seconds.append(time.process_time() - cpu_begin)
        seconds.append(time.perf_counter() - begin)
        if repeat == 0:
            growth = (peak_bytes() - before) / len(data)
    return (
        f"{tensors:>9} tensors {form:<8} {len(data) / 1e6:6.1f} MB  min {min(seconds):6.3f} s  "
        f"median {statistics.median(seconds):6.3f} s  max {max(seconds):6.3f} s  "
        f"cpu {min(cpu_seconds):6.3f} s  memory {growth:4.1f} x header"
    )


def main() -> None:
    forms = "; ".join(f"{name}: {meaning}" for name, meaning in FORMS.items())
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=forms)
    arguments.add_argument("--tensors", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    arguments.add_argument("--form", choices=FORMS, nargs="+", default=["compact"])
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    if len(given.tensors) == len(given.form) == 1:
        print(measure(given.tensors[0], given.form[0], given.repeats))
        return
    for form in given.form:
        for tensors in given.tensors:
            command = [sys.executable, __file__, "--tensors", str(tensors), "--form", form]
            subprocess.run([*command, "--repeats", str(given.repeats)], check=True)


if __name__ == "__main__":
    main()
