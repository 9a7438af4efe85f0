"""Finds interpreters, builds a wheel for each once, and makes one environment per cell; uv keeps what it downloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from versions.cells import Cell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

__all__ = ["FOLDER", "FailedCommandError", "find_python", "made"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/versions"
UV = Path(sys.executable).with_name("uv")
LONGEST_S = 1800  # of one command: gigabytes over a slow line

# torch is installed first, on its own; nothing later may replace it by another build.
WITHOUT_TORCH = "torch; sys_platform == 'never'\n"


class FailedCommandError(Exception):
    """A command failed; the message is the end of what it wrote."""


@cache
def find_python(version: str) -> str | None:
    """Return the interpreter of ``major.minor``, on the path or among pyenv's; None where the machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))):
        if candidate is not None and _version_of(candidate) == version:
            return candidate
    return None


def _version_of(python: str) -> str:
    """Ask an interpreter; pyenv's names on the path answer nothing where the version is not chosen."""
    ask = "import sys; print(*sys.version_info[:2], sep='.')"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.strip()


def made(cell: Cell, python: str, torch: str | None) -> Path:
    """Make the environment of a cell; return its interpreter.

    Args:
        cell: Which one.
        python: The interpreter it is made of.
        torch: What to install as torch; None: the oldest or the newest one that has a wheel for this Python.

    Raises:
        FailedCommandError: something cannot be built, or not be installed together.
    """
    folder = FOLDER / cell.name
    run([UV, "venv", "--quiet", "--clear", "--python", python, folder])
    inside = folder / "bin/python"
    install = [UV, "pip", "install", "--quiet", "--python", inside, "--only-binary", ":all:"]
    age = ["--resolution", "lowest-direct" if cell.age == "lowest" else "highest"]
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    run([*install, *age, *([torch] if torch else [each for each in needed if each.startswith("torch")])])
    override = FOLDER / "without_torch.txt"
    override.write_text(WITHOUT_TORCH)
    extras = [argument for name in cell.extras for argument in ("--extra", name)]
    run([*install, *age, "--override", override, "--requirement", ROOT / "pyproject.toml", *extras])
    run([*install, "--no-deps", wheel(cell.python, python)])
    run([UV, "pip", "check", "--quiet", "--python", inside])
    return inside


@cache
def wheel(version: str, python: str) -> Path:
    """Build the wheel for a version of Python.

    Most of the engine knows no Python: its objects come from ccache, if the folder lies as deep as that of `make`.
    """
    folder, builder = FOLDER / f"wheel-{version}", FOLDER / f"builder-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    run([UV, "venv", "--quiet", "--clear", "--python", python, builder])
    run([UV, "pip", "install", "--quiet", "--python", builder, "scikit-build-core", "pybind11", "cmake", "ninja"])
    build = [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", builder / "bin/python"]
    run([*build, "--config-setting", f"build-dir=build/versions-{version}", "--out-dir", folder, ROOT])
    return next(folder.glob("*.whl"))


def run(command: Sequence[str | Path]) -> None:
    """Run a command.

    Raises:
        FailedCommandError: it failed.
    """
    text = list(map(str, command))
    done = subprocess.run(text, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode:
        raise FailedCommandError(f"{' '.join(text)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
