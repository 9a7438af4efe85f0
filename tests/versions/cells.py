"""The environments that are tried: each version of Python, with the oldest and with the newest libraries.

No row names a version of a storage library or of torch: the oldest is what `pyproject.toml` allows, and the newest what
the registry has today. Hosts (transformers, diffusers, …) are tested elsewhere with their oldest and newest versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Age", "Cell", "cells"]

Age = Literal["lowest", "highest"]  # as uv calls them

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True)
class Cell:
    """One environment.

    Attributes:
        python: ``major.minor``.
        age: Of torch, and of the libraries that `pyproject.toml` names.
    """

    python: str
    age: Age

    @property
    def name(self) -> str:
        """Say which one it is; also the name of its folder."""
        return f"{self.python}-{self.age}"


def cells() -> Iterator[Cell]:
    """Give all of them."""
    for python in PYTHONS:
        yield Cell(python, "lowest")
        yield Cell(python, "highest")
