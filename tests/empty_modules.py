"""Empty modules in place of those that exist for CUDA alone, for libraries that import them on a CPU too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from transformers.utils import is_torchvision_available

EMPTY = ("sgl_kernel", "torchvision", "triton")


class EmptyClass:
    """Takes any arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass


class EmptyModule(ModuleType):
    """Has every name: a class, or a module that is a decorator too."""

    __path__ = ()
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_class = name[0].isupper() or name == "constexpr"
        made = type(name, (EmptyClass,), {}) if is_class else EmptyModule(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else lambda each: each


class EmptyModules:
    """Finds them for ``import``."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        return ModuleSpec(name, cls, is_package=True) if name.partition(".")[0] in EMPTY else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return EmptyModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Leave it empty."""


def install() -> None:
    """Let them be found from now on, by all but transformers."""
    is_torchvision_available()  # which transformers remembers
    sys.meta_path.insert(0, EmptyModules)  # type: ignore[arg-type]
