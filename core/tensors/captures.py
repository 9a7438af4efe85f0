"""Keeps a load's calls of torch from breaking the capture of a CUDA graph on another thread.

A capture in torch's default mode ("global") forbids potentially unsafe calls, such as ``cudaMalloc``, on every thread;
such a call invalidates the capture. A load allocates and copies nothing that belongs to a capture. So its thread
exempts itself: ``cuThreadExchangeStreamCaptureMode`` with CU_STREAM_CAPTURE_MODE_RELAXED. The engine does the same for
its own calls (``native/cuda/relaxed_capture.h``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from streamer import _native

__all__ = ["outside_captures"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def outside_captures(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Relax this thread's capture mode while `function` runs; change nothing if no CUDA driver is in use."""

    @wraps(function)
    def relaxed(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        before = _native.cuda_exchange_capture_mode(_native.CAPTURE_MODE_RELAXED)
        try:
            return function(*arguments, **named)
        finally:
            if before is not None:
                _native.cuda_exchange_capture_mode(before)

    return relaxed
