"""The log of this package, and its warnings. Nobody needs to read them: a failure to write one ends nothing.

Python's logging and warnings write to ``sys.stderr`` by default, and raise an exception if that is closed, or was
replaced by an object that cannot be written.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any


class OwnLogger(logging.Logger):
    """Passes its records to Python's logger of the same name, so handlers, levels and filters are the user's."""

    def __init__(self, name: str = "streamer") -> None:
        super().__init__(name)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (a method of the base class)
        """Whether Python's logger takes records of a level."""
        return logging.getLogger(self.name).isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record on; an exception of a handler is dropped."""
        try:
            logging.getLogger(self.name).handle(record)
        except Exception:
            return


def warn(text: str, category: type[Warning], *, source: Any = None) -> None:
    """Warn the caller of the function that calls this one; raises only if the user turned the warning into an error."""
    try:
        warnings.warn(text, category, stacklevel=3, source=source)
    except Warning:
        raise
    except Exception:
        return
