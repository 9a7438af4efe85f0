"""Calls a library for private folders; it reads their weights from the URL if its reader can be replaced.

Guarantees: every version of the library finds the weights. If a hook does not fit, the weights are written into the
private folder before the call. If a hook fits and the library does not use it, the weights are written after the call,
and the library is called a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from safetensors import SafetensorError

from streamer.compat.hooks import Hook
from streamer.core.errors import StreamerError
from streamer.integrations.routed_names import Reader, RoutedName, routed

__all__ = ["Route", "Routed", "call_routed"]

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
class Route:
    """How the weights of one folder are read.

    Attributes:
        folder: The private folder.
        readers: Name in the library to the reader that replaces it.
        hook: Decides whether the names can be replaced.
    """

    folder: Routed
    readers: Mapping[RoutedName, Reader]
    hook: Hook


def call_routed(call: Callable[[], _Result], routes: Sequence[Route]) -> _Result:
    """Call a library while its readers are replaced.

    Args:
        call: Calls the library; a second call must do the same.
        routes: One route for each folder with weights.

    Raises:
        StreamerError: as `streamer.load`.
    """
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


def _routed_call(call: Callable[[], _Result], routes: Sequence[Route]) -> _Result:
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
