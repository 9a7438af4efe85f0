"""Calls a library for private folders, whose weights it reads from the URL if its reader can be replaced.

Guarantees: the library finds the weights, whatever its version reads them with. If a hook does not fit, the files are
written into the private folder before the call. If a library passes by a hook that fits, they are written after it,
and the library is called once more.
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

__all__ = ["Route", "Routed", "called"]

_Result = TypeVar("_Result")

CONFIGURATION = "config.json"  # an error that names it is not about weights


class Routed(Protocol):
    """A private folder, or one of its components."""

    @property
    def path(self) -> str:
        """Its absolute path."""

    @property
    def is_read(self) -> bool:
        """Whether weights were opened through a reader of ours, or there are none."""

    def write_weights(self) -> None:
        """Write all files of weights."""


@dataclass(frozen=True)
class Route:
    """How the weights of one folder are read.

    Attributes:
        folder: That has none.
        readers: What reads for each name of the library.
        hook: Whether they can be replaced.
    """

    folder: Routed
    readers: Mapping[RoutedName, Reader]
    hook: Hook


def called(call: Callable[[], _Result], routes: Sequence[Route]) -> _Result:
    """Call a library while its readers are replaced.

    Args:
        call: Calls it; a second call must do the same.
        routes: One for each folder with weights.

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
        passed_by = [route for route in fitting if route.hook not in used]
        if not passed_by:
            return result
        del result  # before its like is made
    except Exception as error:
        passed_by = [route for route in fitting if not route.folder.is_read and _is_of(error, route.folder)]
        if not passed_by:
            raise
    for route in fitting:  # a tensor is read ahead once
        route.folder.write_weights()
    result = call()  # if it fails again, the weights were not the reason
    for route in passed_by:
        route.hook.reject("weights were not read through it")
    return result


def _routed_call(call: Callable[[], _Result], routes: Sequence[Route]) -> _Result:
    with ExitStack() as stack:
        for route in routes:
            stack.enter_context(routed(route.folder.path, route.readers))
        return call()


def _is_of(error: BaseException, folder: Routed) -> bool:
    """Whether a library failed because a file of weights is not in the folder, or is empty there."""
    chain = list(_chain(error))
    if any(isinstance(each, StreamerError) or CONFIGURATION in str(each) for each in chain):
        return False
    return any(isinstance(each, SafetensorError) or folder.path in str(each) for each in chain)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
