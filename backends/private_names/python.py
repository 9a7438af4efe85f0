"""Python itself: finalizers that other libraries have registered, and the unpickler that is written in Python.

Tried with Python 3.10 to 3.13.
"""

from __future__ import annotations

import pickle
import weakref
from typing import Any

# Its memo takes memory only for what it holds; that of the public one has room for each index up to the largest.
PythonUnpickler: Any = getattr(pickle, "_Unpickler", pickle.Unpickler)


def detach_finalizers(of: Any) -> None:
    """Detach all finalizers (`weakref.finalize`) of an object; publicly, only the code that made a finalizer can."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and alive[0] is of:
            finalizer.detach()
