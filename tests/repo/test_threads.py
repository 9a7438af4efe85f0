"""The table of threads in docs/architecture.md names every thread that a load may have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from servers.scripted_http import ScriptedServer

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs/architecture.md").read_text().partition("\n## Threads\n")[2].partition("\n## ")[0]
TOLD = {name for row in re.findall(r"^\| (`[^|]+) \|", SECTION, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)}

LOAD = """
import sys, threading
from contextlib import suppress
from pathlib import Path
import fsspec, streamer

def names():
    of_python = {thread.name for thread in threading.enumerate()}
    yield from of_python
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended
            name = path.read_text().strip()
            if name not in {each[:15] for each in of_python}:  # Python 3.14 tells the system its own names
                yield name

own_name = Path("/proc/self/comm").read_text().strip()
fsspec.filesystem("memory").pipe_file("/model.safetensors", Path(sys.argv[1]).read_bytes())
options = streamer.Options(direct_io=True, memory_limit_bytes=1)  # the next is read when one is taken
seen = set()
for uris in (sys.argv[1:], ["memory://model.safetensors"]):
    with streamer.stream(uris, framework="np", progress=True, options=options) as tensors:
        for _ in tensors:
            seen.update(names())
print(*sorted(seen - {own_name}), sep="\\n")
"""


def shard_of(name: str) -> bytes:
    return save({f"{name}.{number}": np.full((64, 64), number, dtype=np.float32) for number in range(8)})


def test_every_thread_of_a_load_is_in_the_table(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(shard_of("file"))

    with ScriptedServer(shard_of("http")) as server:
        command = [sys.executable, "-c", LOAD, str(file), server.url.replace("127.0.0.1", "localhost")]
        seen = set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines())
    assert {"MainThread", "streamer-file0", "streamer-http0", "streamer-py0", "tqdm_monitor"} <= seen
    patterns = [re.compile(re.escape(name).replace("<n>", "[0-9]+")) for name in TOLD]
    assert not [name for name in seen if not any(pattern.fullmatch(name) for pattern in patterns)]


STARTS = (
    ("native", r'start_(?:engine_)?thread\("(\w+)"'),
    ("core", r'name=f"streamer-(\w+)\{'),
    *((folder, r'name=f"streamer-(\w+)\{') for folder in ("src", "compat", "integrations")),
    *((folder, r'name="streamer-(\w+)"') for folder in ("core", "src", "backends", "compat", "integrations")),
    *((folder, r'\brole="(\w+)"') for folder in ("core", "src", "backends", "compat", "integrations", "plugins")),
)


def test_the_table_names_the_threads_that_the_code_starts() -> None:
    started = {
        role
        for folder, pattern in STARTS
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".cc", ".h") and not path.stem.endswith("_test")
        for role in re.findall(pattern, path.read_text())
    }
    own = {name.removeprefix("streamer-").removesuffix("<n>") for name in TOLD if name.startswith("streamer-")}
    assert started - {"example"} == own  # the word of a docstring
