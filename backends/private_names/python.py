"""Python itself: finalizers that other libraries have registered.

Tried with Python 3.10 to 3.13.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["detach_finalizers"]


def detach_finalizers(of: Any) -> None:
    """Detach all finalizers (`weakref.finalize`) of an object; publicly, only the code that made a finalizer can."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and alive[0] is of:
            finalizer.detach()
