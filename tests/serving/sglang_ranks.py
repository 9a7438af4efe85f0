"""Fills models in the processes of a tensor-parallel SGLang, and says what each rank read of them.

    python sglang_ranks.py RANKS FOLDER_OR_URL=FOLDER …

Each model is loaded twice: from the first place by our loader, and from the folder by SGLang's own. SGLang is imported
once; the ranks are forks, joined by gloo. A line of JSON for each rank and model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import empty_modules
import torch

from streamer.integrations.serving.recorder import Recorder

if __name__ == "__main__":  # before SGLang is imported
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    empty_modules.install()

    from sglang.srt.plugins import load_plugins

    load_plugins()

    from sglang_engine import loaded

    from streamer.integrations.sglang import loader

RECORDERS: list[Recorder] = []


class NotedRecorder(Recorder):
    def __init__(self) -> None:
        super().__init__()
        RECORDERS.append(self)


def main(ranks: int, pairs: list[str]) -> None:
    loader.Recorder = NotedRecorder  # type: ignore[misc]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            run(rank, ranks, pairs)
            os._exit(0)
        children.append(child)
    if sum(os.waitpid(child, 0)[1] for child in children):
        sys.exit("a rank failed")


def run(rank: int, ranks: int, pairs: list[str]) -> None:
    torch.set_num_threads(1)
    for pair in pairs:
        place, folder = pair.split("=")
        tp = f"--tp-size={ranks}"
        expected = dict(loaded(folder, tp, load_format="safetensors", rank=rank).named_parameters())
        RECORDERS.clear()
        found = dict(loaded(place, tp, rank=rank).named_parameters())
        read = [each for recorder in RECORDERS for each in recorder.checkpoints if "s3://" in str(each)]
        line = {
            "rank": rank,
            "model": Path(folder).name,
            "is_complete": found.keys() == expected.keys(),
            "different": [name for name in expected if not torch.equal(found[name], expected[name])],
            "kept_bytes": sum(each.nbytes for each in expected.values()),
            "read_bytes": sum(each.read_bytes for each in read),
            "direct_bytes": sum(each.direct_bytes for each in read),
            "staged_bytes": sum(each.staged_bytes for each in read),
            "early": {name: size for recorder in RECORDERS for name, size in recorder.early_bytes.items()},
        }
        os.write(1, (json.dumps(line) + "\n").encode())  # whole, beside the lines of others


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
