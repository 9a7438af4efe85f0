"""Replaces ``safe_open`` of one module while files of certain folders are opened by us; other files go on as before.

Thread-safe. The name is ours while at least one folder is routed; then it is again what it was, or what
`streamer.patch` has made of it meanwhile. One that somebody else has changed stays as it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import safetensors

__all__ = ["RoutedName", "Opener"]

Opener = Callable[..., Any]  # of a path in the folder, and what else `safe_open` takes


class RoutedName:
    """The name ``safe_open`` of a module.

    Args:
        module: Its name; it is imported when a folder is routed first.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._openers: dict[str, Opener] = {}
        self._theirs: Any = None
        self._route = self._opened  # one object: a method is another one each time

    @contextmanager
    def routed(self, folder: str, opener: Opener) -> Iterator[None]:
        """Open the files of a folder so inside of a block.

        Args:
            folder: Its absolute path.
            opener: Gives a handle of a path below it, or None for one that is to be opened as before.
        """
        self._add(folder, opener)
        try:
            yield
        finally:
            self._remove(folder)

    def _add(self, folder: str, opener: Opener) -> None:
        module = import_module(self._module)
        with self._lock:
            if not self._openers:
                held = vars(module)["safe_open"]
                # What is safetensors' own may be patched until then, or no longer.
                self._theirs = None if held is safetensors.safe_open else held
                vars(module)["safe_open"] = self._route
            self._openers[folder] = opener

    def _remove(self, folder: str) -> None:
        module = import_module(self._module)
        with self._lock:
            del self._openers[folder]
            if not self._openers and vars(module)["safe_open"] is self._route:
                vars(module)["safe_open"] = self._theirs or safetensors.safe_open

    def _opened(self, filename: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(filename, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(filename))
            with self._lock:
                openers = [each for folder, each in self._openers.items() if path.startswith(folder + os.sep)]
            for opener in openers:
                handle = opener(path, *arguments, **named)
                if handle is not None:
                    return handle
        return (self._theirs or safetensors.safe_open)(filename, *arguments, **named)
