"""Nobody needs to read what this package says: no state of ``sys.stderr`` ends a load, a save, a pull or a push."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

# A process of its own: pytest has handlers for logs and warnings, which hide what Python does without any.
PROGRAM = """
import io, itertools, json, sys, traceback, warnings
from pathlib import Path
import numpy as np
import streamer
import torch
from streamer import _progress
from streamer._cli import main
from streamer.core.log import OwnLogger, warn

class Raising(io.StringIO):
    def isatty(self): return True
    def write(self, text): raise RuntimeError("no terminal")

class Bare:
    pass

def closed():
    stream = io.StringIO()
    stream.close()
    return stream

def fail(done, total):
    raise ValueError("the caller's function raises, which is logged")

def load(folder):
    for progress in (True, None, fail):
        tensors = streamer.load(source, framework="np", progress=progress)
    return tensors

def load_into(folder):
    target = {"a": torch.zeros(8, dtype=torch.float64)}
    streamer.load_into(source, target, progress=True)
    return target

def save(folder):
    for number, progress in enumerate((True, None, fail)):
        streamer.save({"a": np.arange(8.0)}, folder / str(number), progress=progress)
    return streamer.load(folder / "2", framework="np")

def run(*words):
    return main([str(each) for each in words], standalone_mode=False)

def pull(folder):
    assert run("pull", folder / "absent", folder / "to") != 0  # and its error cannot be written, either
    assert run("pull", source, folder) == 0
    return streamer.load(folder, framework="np")

def push(folder):
    assert run("push", source, folder) == 0
    return streamer.load(folder, framework="np")

def talk(folder):
    OwnLogger().warning("says something")
    warn("warns", RuntimeWarning)
    return {"a": np.arange(8.0)}

base = Path(sys.argv[1])
source = base / "source"
_progress.SHOWN_AFTER_S = 0
warnings.simplefilter("always")
kept, failed = sys.stderr, {}
states = {"closed": closed, "raising": Raising, "bare": Bare, "none": lambda: None}
for (state, made), verb in itertools.product(states.items(), (load, load_into, save, pull, push, talk)):
    sys.stderr = made()
    try:
        assert verb(base / state / verb.__name__)["a"].tolist() == list(range(8))
    except Exception:
        failed[f"{state} {verb.__name__}"] = traceback.format_exc()
    finally:
        sys.stderr = kept
print(json.dumps(failed))
"""


def test_no_state_of_stderr_ends_a_verb_regression(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    save_file({"a": np.arange(8.0)}, tmp_path / "source" / "model.safetensors")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(f"{name}: {text}" for name, text in failed.items())
