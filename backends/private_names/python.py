"""Python itself: finalizers that somebody else has registered.

Tried with Python 3.10 to 3.13.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["detach_finalizers"]


def detach_finalizers(of: Any) -> None:
    """Forget what `weakref.finalize` would call when an object ends; only who made a finalizer has it."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and alive[0] is of:
            finalizer.detach()
