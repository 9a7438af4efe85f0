"""Draw a flame graph (SVG) of a command's processor time, including the kernel's.

    python benchmarks/flame_graph.py OUT.svg TITLE -- COMMAND...

The command prints a line when it is ready, and begins when it gets a line on its standard input. From then on, all its
threads are recorded. Needs Linux's ``perf`` (Debian: linux-perf), and root, or kernel.perf_event_paranoid at most 1.

Guarantees: widths are shares of the samples. A frame narrower than a pixel is left out, but its samples still count in
the frames below. `load_again.py` is such a command.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SAMPLES_PER_S = 199  # not a multiple of a timer's frequency; not more, because perf unwinds slowly
STACK_BYTES = 16384  # copied with each sample: libraries have no frame pointers
ATTACHED_AFTER_S = 1.0
WIDTH, ROW, LEAST_WIDTH = 1200, 16, 1.0
_SYMBOL = re.compile(r"^\s+[0-9a-f]+ (.+?)(?:\+0x[0-9a-f]+)? \((.*)\)$")


@dataclass
class Frame:
    """A function, as called by the functions below it."""

    samples: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)


def folded(text: str) -> Counter[tuple[str, ...]]:
    """Count the stacks in the output of ``perf script``: the thread's name, then the outermost function first."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for sample in text.split("\n\n"):
        head, *frames = sample.strip("\n").splitlines() or [""]
        if not head:
            continue
        names = [
            match[1] if match[1] != "[unknown]" else Path(match[2]).name
            for match in map(_SYMBOL.match, frames)
            if match
        ]
        stack = [head.split()[0].rstrip("0123456789"), *[_shortened(name) for name in reversed(names)]]
        stacks[tuple(name for name, before in zip(stack, ["", *stack], strict=False) if name != before)] += 1
    return stacks


def _shortened(name: str) -> str:
    """Drop arguments and template parameters, which are long and tell little."""
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = shorter
    return name.replace("streamer::", "").strip() or "?"


def tree(stacks: Counter[tuple[str, ...]]) -> Frame:
    """Merge the stacks, beginning with their outermost functions."""
    root = Frame()
    for stack, count in stacks.items():
        frame = root
        frame.samples += count
        for name in stack:
            frame = frame.callees.setdefault(name, Frame())
            frame.samples += count
    return root


def svg(root: Frame, title: str) -> str:
    """Draw the graph, with the outermost functions at the bottom."""
    boxes: list[tuple[int, float, float, str, int]] = []

    def place(frame: Frame, name: str, left: float, depth: int) -> None:
        width = frame.samples / root.samples * WIDTH
        if width < LEAST_WIDTH:
            return
        boxes.append((depth, left, width, name, frame.samples))
        for callee in sorted(frame.callees):
            place(frame.callees[callee], callee, left, depth + 1)
            left += frame.callees[callee].samples / root.samples * WIDTH

    place(root, "all", 0, 0)
    height = (max(depth for depth, *_ in boxes) + 3) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="monospace" font-size="11">',
        f'<text x="4" y="13" font-size="13">{html.escape(title)}</text>',
    ]
    for depth, left, width, name, samples in boxes:
        top = height - (depth + 1) * ROW
        tip = html.escape(f"{name}: {samples / root.samples:.1%} of {root.samples} samples")
        color = 40 + zlib.crc32(name.encode()) % 160
        lines.append(f'<g><title>{tip}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" ')
        lines.append(f'fill="rgb({220 - color // 8},{color + 40},60)"/>')
        shown = name[: int((width - 4) / 6.7)]
        if len(shown) > 2:
            lines.append(f'<text x="{left + 2:.1f}" y="{top + 11}">{html.escape(shown)}</text>')
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    if "--" not in sys.argv or sys.argv.index("--") != 3:
        sys.exit(__doc__)
    picture, title, command = Path(sys.argv[1]), sys.argv[2], sys.argv[4:]
    with tempfile.TemporaryDirectory() as scratch:
        data = f"{scratch}/perf.data"
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as observed:
            assert observed.stdin is not None
            assert observed.stdout is not None
            observed.stdout.readline()
            record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "-o", data]
            stacks = ["--call-graph", f"dwarf,{STACK_BYTES}"]
            with subprocess.Popen([*record, *stacks, "-p", str(observed.pid)]) as recorder:
                time.sleep(ATTACHED_AFTER_S)
                observed.stdin.close()
                observed.wait()
                recorder.wait()
        script = ["perf", "script", "-i", data, "-F", "comm,ip,sym,dso"]
        text = subprocess.run(script, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg(tree(folded(text.decode(errors="replace"))), title))


if __name__ == "__main__":
    main()
