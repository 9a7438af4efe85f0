"""NVTX ranges, with which Nsight Systems shows the stages of a load beside the kernels of a GPU.

Nsight names its own library in ``NVTX_INJECTION64_PATH``; without it nothing listens, and nothing here is used.
NVIDIA's library, which CUDA builds of torch require, is opened when the first load of the process begins.
https://nvidia.github.io/NVTX/doxygen/index.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamer.core.log import OwnLogger
from streamer.core.trace.watcher import STAGES, SessionWatcher, Watcher

if TYPE_CHECKING:
    from streamer import _native

VARIABLE = "NVTX_INJECTION64_PATH"
NAMES = ("libnvtx3interop.so.1", "libnvToolsExt.so.1")  # of CUDA 12.8 and newer, and of older ones
_log = OwnLogger()


class NvtxRanges(Watcher):
    """Marks what each thread does, and the stages of each session."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @contextmanager
    def during(self, category: str, name: str, **facts: Any) -> Iterator[None]:  # noqa: ARG002  of `Watcher`
        """Mark what the calling thread does in a block."""
        self._library.nvtxRangePushA(f"streamer: {name}".encode())
        try:
            yield
        finally:
            self._library.nvtxRangePop()

    def session(
        self,
        engine: _native.Session | None = None,  # noqa: ARG002  of `Watcher`, as the others
        names: Sequence[str] = (),  # noqa: ARG002
        shared: Collection[int] = (),  # noqa: ARG002
    ) -> SessionWatcher:
        """Return what marks the stages of a session."""
        return _SessionRanges(self._library)

    def end(self, facts: Mapping[str, Any], shares: Mapping[str, float], error: BaseException | None) -> None:
        """Do nothing: each range has ended."""


class _SessionRanges(SessionWatcher):
    """A stage may end in another thread than it began, so its range belongs to the process."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._stage, self._range = 0, 0

    def enter(self, stage: int) -> None:
        if stage == self._stage:
            return
        if self._stage in STAGES:
            self._library.nvtxRangeEnd(self._range)
        self._stage = stage
        if stage in STAGES:
            self._range = self._library.nvtxRangeStartA(f"streamer: {STAGES[stage]}".encode())

    def end(self) -> None:
        self.enter(0)


@lru_cache(maxsize=1)
def nvtx_ranges() -> NvtxRanges | None:
    """Return the ranges of this process; None without NVIDIA's library, which is logged."""
    for path in chain(NAMES, _installed()):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        library.nvtxRangeStartA.restype = ctypes.c_uint64
        library.nvtxRangeEnd.argtypes = [ctypes.c_uint64]
        return NvtxRanges(library)
    _log.warning("%s is set, but there is no %s: pip install nvidia-nvtx", VARIABLE, " or ".join(NAMES))
    return None


def _installed() -> Iterator[Path]:
    """Find the library where NVIDIA's wheels have it."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in NAMES:
            yield from Path(folder).glob(f"*/lib/{name}")
