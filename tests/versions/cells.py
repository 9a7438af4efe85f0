"""The environments that are tried: each version of Python, with the oldest and with the newest libraries.

Each pair of these is tried twice: with the libraries of all storages, and with the hosts (transformers, diffusers,
accelerate, safetensors) and what they need. No row names a version of a library: the oldest is what `pyproject.toml`
allows, and the newest what the registry has today.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Age", "Cell", "Kind", "cells"]

Age = Literal["lowest", "highest"]  # as uv calls them
Kind = Literal["storages", "hosts"]

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
EXTRAS: dict[Kind, tuple[str, ...]] = {"storages": ("s3", "gcs", "azure", "http", "hf"), "hosts": ("http", "hosts")}


@dataclass(frozen=True)
class Cell:
    """One environment.

    Attributes:
        python: ``major.minor``.
        age: Of torch, and of the libraries that `pyproject.toml` names.
        kind: What is tried in it.
    """

    python: str
    age: Age
    kind: Kind = "storages"

    @property
    def name(self) -> str:
        """Say which one it is; also the name of its folder."""
        return f"{self.python}-{self.age}-{self.kind}"

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras of `pyproject.toml` that are installed."""
        return EXTRAS[self.kind]


def cells() -> Iterator[Cell]:
    """Return all of them."""
    for python in PYTHONS:
        for kind in EXTRAS:
            yield Cell(python, "lowest", kind)
            yield Cell(python, "highest", kind)
