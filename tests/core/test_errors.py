"""Nobody needs to read what this package says: no state of ``sys.stderr`` ends a load, a save, a pull or a push."""

from __future__ import annotations

import ast
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import house
import numpy as np
import pytest
from each_row import each_row
from safetensors.numpy import save_file

import streamer
from streamer.core import errors

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


# --- the error tree: drawn in its file, matching builtins, messages that carry their facts --------------------------

NAMES = [name for name in streamer.__all__ if name.endswith("Error")]
CLASSES = [getattr(errors, name) for name in NAMES]
BUILTINS = {
    "ObjectNotFoundError": FileNotFoundError,
    "AccessDeniedError": PermissionError,
    "CredentialsError": PermissionError,
    "TruncatedError": EOFError,
    "ConnectError": ConnectionError,
    "TransferTimeoutError": TimeoutError,
    "StorageError": OSError,
    "HeaderError": ValueError,
    "UnknownTensorError": KeyError,
    "UnsupportedDtypeError": TypeError,
    "DeviceError": RuntimeError,
}


def test_the_drawing_shows_every_class_once():
    drawn = re.findall(r"(?m)^ {4}[│├└─ ]*(\w+Error)", errors.__doc__)
    assert sorted(drawn) == sorted(NAMES)


@each_row("cls", CLASSES)
def test_each_class_is_documented_and_can_be_raised(cls):
    assert cls.__doc__
    error = cls("it broke", uri="s3://bucket/key", hint="Mend it")
    assert str(error) == "s3://bucket/key: it broke. Mend it"
    assert isinstance(error, errors.StreamerError)


@each_row(("name", "builtin"), BUILTINS.items())
def test_a_class_is_also_the_builtin_a_caller_expects(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_a_message_says_range_size_status_code_request_and_attempts():
    error = errors.HttpStatusError(
        "the server failed",
        uri="s3://b/k",
        byte_range=(100, 200),
        object_size=1000,
        status=503,
        code="SlowDown",
        request_id="R1",
        attempts=8,
        elapsed_s=12.34,
        hint="Wait",
    )
    assert str(error) == (
        "s3://b/k: the server failed"
        " (bytes 100-199 of 1000, HTTP 503, SlowDown, request id R1, 8 attempts in 12.3 s). Wait"
    )


@pytest.mark.parametrize(
    ("elapsed_s", "reported"), [(0.0, "3 attempts)"), (0.01, "3 attempts in 0.1 s)"), (7, "in 7.0 s)")]
)
def test_attempts_never_took_no_time_regression(elapsed_s, reported):
    """Azure's were "3 attempts in 0.0 s"."""
    assert str(errors.ConnectError("gone", attempts=3, elapsed_s=elapsed_s)).endswith(reported)


def test_an_error_survives_pickling_as_worker_processes_need():
    error = errors.ObjectNotFoundError("gone", uri="s3://b/k", status=404, hint="Look")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.status) == (type(error), str(error), 404)


FAILURES = {name for name in NAMES if issubclass(getattr(errors, name), errors.StorageError)}


def calls_without_a_hint(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", getattr(node.func, "id", "")) not in FAILURES:
            continue
        if not any(keyword.arg in ("hint", None) for keyword in node.keywords):
            yield node.lineno


def test_every_failure_of_a_storage_says_what_to_do_regression():
    """Most answers of 404, and folders in the place of files, left the reader alone."""
    found = {module: list(calls_without_a_hint(path)) for module, path in house.python_files().items()}
    assert {module: lines for module, lines in found.items() if lines} == {}
