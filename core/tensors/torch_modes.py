"""Keeps torch's modes from changing a load: ``torch.inference_mode``, and a CUDA graph's capture on another thread.

A tensor that torch makes in inference mode can never be written outside of it, nor trained as a parameter. The mode
belongs to a thread, so the same load would return other tensors in another thread (`aload`).

A capture in torch's default mode ("global") forbids potentially unsafe calls, such as ``cudaMalloc``, on every thread;
such a call invalidates the capture. A load allocates and copies nothing that belongs to a capture. So its thread
exempts itself: ``cuThreadExchangeStreamCaptureMode`` with CU_STREAM_CAPTURE_MODE_RELAXED. The engine does the same for
its own calls (``native/cuda/relaxed_capture.h``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

from streamer import _native
from streamer.core.imported import if_imported


def normal_tensors() -> AbstractContextManager[object]:
    """Return a context in which torch makes normal tensors; it does nothing if torch already does, or is not imported.

    Example:
        >>> with normal_tensors():
        ...     pass
    """
    torch = if_imported("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        return nullcontext()
    mode: AbstractContextManager[object] = torch.inference_mode(mode=False)
    return mode


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
