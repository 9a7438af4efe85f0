"""Runs Python programs that need torch quickly: each is forked from a process that has imported torch, and not us.

The program has arguments, an environment, a folder, output and `sys.path` of its own. A test of what a new interpreter
does (its start and end, its memory, its options, variables that a library reads when it is loaded) uses `subprocess`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import types
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess

__all__ = ["run", "started"]

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["torch.distributed.fsdp"])  # which imports what else takes long


def run(
    program: str, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 120
) -> CompletedProcess[str]:
    """Run a program to its end: code, or the path of a file."""
    with tempfile.TemporaryDirectory() as folder:
        process = started(program, *arguments, env=env, output=folder)
        process.join(timeout)
        process.kill()
        process.join()
        assert process.exitcode is not None
        output, errors = (Path(folder, name).read_text() for name in ("1", "2"))
        return CompletedProcess(program, process.exitcode, output, errors)


def started(program: str, *arguments: str, output: str, env: Mapping[str, str] | None = None) -> BaseProcess:
    """Start a program, which writes to the files ``1`` and ``2`` of a folder."""
    process = _FORKING.Process(target=_run, args=(program, arguments, dict(env or os.environ), output))
    process.start()
    return process


def _run(program: str, arguments: tuple[str, ...], environment: dict[str, str], output: str) -> None:
    for number in (1, 2):
        os.dup2(os.open(f"{output}/{number}", os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # as TMPDIR says
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = [program, *arguments]
    is_file = program.endswith(".py")
    sys.path[:0] = [os.path.dirname(program) if is_file else "", *environment.get("PYTHONPATH", "").split(":")]
    exec(compile(Path(program).read_text() if is_file else program, program, "exec"), vars(main))
