"""Calls a library for private folders; it reads their weights from the URL if its reader can be replaced.

Guarantees: every version of the library finds the weights. If a hook does not fit, the weights are written into the
private folder before the call. If a hook fits and the library does not use it, the weights are written after the call,
and the library is called a second time.

A reader or writer of a module is replaced for files of certain folders; other files are not affected. Thread-safe. The
name is replaced while at least one folder is routed. Afterwards it has its earlier value, or the value that
`streamer.patch` or `streamer.unpatch` has set meanwhile. If other code has changed the name, it stays as it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar

from safetensors import SafetensorError

from streamer.compat.hooks import Hook
from streamer.core.errors import StreamerError

Reader = Callable[..., Any]  # takes a path in the folder, and the other arguments of the replaced name


class RoutedName:
    """A name of a module that reads, or writes, one file; a version may lack the module or the name.

    `origin` is the module and name from which the reader was imported, if `streamer.patch` replaces it; `position` is
    that of the path among the arguments.
    """

    def __init__(
        self, module: str, name: str = "safe_open", origin: tuple[str, str] | None = None, *, position: int = 0
    ) -> None:
        self.module, self._name, self._origin = module, name, origin
        self._position = position
        self._lock = threading.Lock()
        self._readers: dict[str, Reader] = {}
        self._theirs: Any = None
        self._route = self._read  # kept, because each access of a method creates another object

    def add(self, folder: str, reader: Reader) -> None:
        """Route the files of a folder to a reader, which may return None for a path, from now on."""
        names = self._names()
        with self._lock:
            if not self._readers and self._name in names:
                held = names[self._name]
                # A reader of safetensors is looked up again at each call: `streamer.patch` may replace or restore it.
                self._theirs = None if self._origin is not None and held is self._original() else held
                names[self._name] = self._route
            self._readers[folder] = reader

    def discard(self, folder: str) -> None:
        """Undo `add`; does nothing for a folder that is not routed."""
        with self._lock:
            if self._readers.pop(folder, None) is None:
                return
            names = self._names()
            if not self._readers and names.get(self._name) is self._route:
                names[self._name] = self._theirs or self._original()

    def _names(self) -> dict[str, Any]:
        try:
            return vars(import_module(self.module))
        except ModuleNotFoundError as error:
            if error.name != self.module:
                raise
            return {}

    def _original(self) -> Any:
        assert self._origin is not None
        return vars(import_module(self._origin[0]))[self._origin[1]]

    def _read(self, *given: Any, **named: Any) -> Any:
        at, more = self._position, dict(named)
        filename = given[at] if at < len(given) else more.pop("filename", None)
        if isinstance(filename, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(filename))
            with self._lock:
                readers = [each for folder, each in self._readers.items() if path.startswith(folder + os.sep)]
            for reader in readers:
                found = reader(path, *given[:at], *given[at + 1 :], **more)
                if found is not None:
                    return found
        return (self._theirs or self._original())(*given, **named)


@contextmanager
def routed(folder: str, readers: Mapping[RoutedName, Reader]) -> Iterator[None]:
    """Route several names inside a ``with`` block."""
    with ExitStack() as stack:
        for name, reader in readers.items():
            name.add(folder, reader)
            stack.callback(name.discard, folder)
        yield


_Result = TypeVar("_Result")

CONFIGURATION = "config.json"  # an error that names it is not about weights


class Routed(Protocol):
    """A private folder, or one of its components."""

    @property
    def path(self) -> str:
        """Its absolute path."""

    @property
    def is_read(self) -> bool:
        """Whether weights were opened through a replaced reader, or the folder has no weights."""

    def write_weights(self) -> None:
        """Write all files of weights."""


@dataclass(frozen=True)
class RoutedFolder:
    """How the weights of one folder are read."""

    folder: Routed
    readers: Mapping[RoutedName, Reader]
    hook: Hook  # decides whether the names can be replaced


def call_routed(call: Callable[[], _Result], routes: Sequence[RoutedFolder]) -> _Result:
    """Call a library while its readers are replaced."""
    fitting = [route for route in routes if route.hook.fits()]
    for route in routes:
        if route not in fitting:
            route.folder.write_weights()
    try:
        result = _routed_call(call, fitting)
        used = {route.hook for route in fitting if route.folder.is_read}
        unused = [route for route in fitting if route.hook not in used]
        if not unused:
            return result
        del result  # frees the memory before the second call
    except Exception as error:
        unused = [route for route in fitting if not route.folder.is_read and _is_about(error, route.folder)]
        if not unused:
            raise
    for route in fitting:  # not only the unused ones: a read plan serves a tensor only once
        route.folder.write_weights()
    result = call()  # if it fails again, the weights were not the reason
    for route in unused:
        route.hook.reject("weights were not read through it")
    return result


def _routed_call(call: Callable[[], _Result], routes: Sequence[RoutedFolder]) -> _Result:
    with ExitStack() as stack:
        for route in routes:
            stack.enter_context(routed(route.folder.path, route.readers))
        return call()


def _is_about(error: BaseException, folder: Routed) -> bool:
    """Whether a library failed because a file of weights is missing or empty in the folder."""
    chain = list(_chain(error))
    if any(isinstance(each, StreamerError) or CONFIGURATION in str(each) for each in chain):
        return False
    return any(isinstance(each, SafetensorError) or folder.path in str(each) for each in chain)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
