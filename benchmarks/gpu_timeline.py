"""Draws the timeline of a first load to a CUDA device: its copies, the gaps between them, and calls in the gaps.

    python benchmarks/gpu_timeline.py OUT FILE...

Writes OUT.json (milliseconds from the call of `load`) and OUT.svg, and prints a summary. torch's profiler records the
copies and the calls of the CUDA runtime; it costs a load some percent of its speed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

LEAST_GAP_MS = 1.0
WIDTH, HEIGHT = 1000, 60
COLOURS = {"copy": "#2b6cb0", "cudaMalloc": "#c53030", "other call": "#d69e2e"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    timeline = _timeline(arguments.files)
    arguments.out.with_suffix(".json").write_text(json.dumps(timeline, indent=1) + "\n")
    arguments.out.with_suffix(".svg").write_text(_svg(timeline))
    print({key: value for key, value in timeline.items() if key not in ("copies", "calls")})


def _timeline(files: list[str]) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    import streamer

    torch.empty(1, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        began_ns = time.time_ns()
        tensors = streamer.load(files, device="cuda", progress=False)
        torch.cuda.synchronize()
        ended_ns = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        recorded = json.loads(trace.read_text())
    origin_us = (began_ns - recorded.get("baseTimeNanoseconds", 0)) / 1000
    events = [event for event in recorded["traceEvents"] if "dur" in event]

    def spans(*categories: str) -> list[tuple[str, float, float]]:
        """Return name, begin and duration in ms, sorted by begin."""
        chosen = [event for event in events if event.get("cat") in categories]
        rows = [(event["name"], (event["ts"] - origin_us) / 1000, event["dur"] / 1000) for event in chosen]
        return sorted(rows, key=lambda row: row[1])

    copies, calls = spans("gpu_memcpy"), spans("cuda_runtime", "cuda_driver")
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    return {"bytes": size_bytes, "load_ms": (ended_ns - began_ns) / 1e6, **summary(copies, calls, size_bytes)}


def summary(
    copies: list[tuple[str, float, float]], calls: list[tuple[str, float, float]], size_bytes: int
) -> dict[str, Any]:
    """Add up the time of the engine's copies and of the runtime's calls; rows are name, begin and duration in ms."""
    gaps, end = [], copies[0][1] if copies else 0.0
    for _, begin, duration in copies:
        if begin - end >= LEAST_GAP_MS:
            gaps.append((end, begin - end))
        end = max(end, begin + duration)
    busy_ms = sum(duration for _, _, duration in copies)
    by_name: dict[str, float] = {}
    for name, _, duration in calls:
        by_name[name] = by_name.get(name, 0.0) + duration
    return {
        "first_copy_ms": copies[0][1] if copies else None,
        "last_copy_ms": end,
        "busy_ms": busy_ms,
        "gb_per_s_while_busy": size_bytes / busy_ms / 1e6 if busy_ms else None,
        "gaps_ms": gaps,
        "calls_ms": dict(sorted(by_name.items(), key=lambda item: -item[1])[:8]),
        "copies": copies,
        "calls": [call for call in calls if call[2] >= LEAST_GAP_MS / 10],
    }


def _svg(timeline: dict[str, Any]) -> str:
    scale = WIDTH / timeline["load_ms"]
    marks = [("copy", 5, *copy[1:]) for copy in timeline["copies"]]
    marks += [(call[0] if call[0] in COLOURS else "other call", 35, *call[1:]) for call in timeline["calls"]]
    bars = [
        f'<rect x="{begin * scale:.1f}" y="{row}" width="{max(0.3, duration * scale):.1f}" height="20" '
        f'fill="{COLOURS[kind]}"><title>{kind} {begin:.1f} ms, {duration:.2f} ms</title></rect>'
        for kind, row, begin, duration in marks
    ]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(bars)}</svg>\n'


if __name__ == "__main__":
    main()
