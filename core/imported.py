"""Modules that the program has imported; they are not imported for it."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any


def if_imported(name: str) -> Any:
    """Return a module if it is imported, else None; wait for another thread that is still importing it.

    Until then, `sys.modules` has the module without its later names.

    Example:
        >>> if_imported("sys").__name__, if_imported("no.such.module")
        ('sys', None)
    """
    if name in sys.modules:
        with suppress(ImportError):  # from the other thread, too
            return importlib.import_module(name)
    return None
