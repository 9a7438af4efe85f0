"""What an error shows to a person or a log: its texts, causes and pickle, and the reprs of our objects in it."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from types import TracebackType

from streamer import StreamerError


def shown_by(error: BaseException) -> list[str]:
    """Return all texts that an error shows, causes included, and the reprs of our own objects that its frames hold."""
    texts = traceback.format_exception(error)
    shown: BaseException | None = error
    seen: list[BaseException] = []
    while shown is not None and shown not in seen:  # an error may be its own cause
        seen.append(shown)
        texts += [str(shown), repr(shown), *map(str, getattr(shown, "__notes__", ()))]
        texts += [f"{type(value).__name__}: {value!r}" for value in _own_objects(shown.__traceback__)]
        if isinstance(shown, StreamerError):
            texts += [repr(vars(shown)), repr(pickle.dumps(shown))]
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return texts


def _own_objects(step: TracebackType | None) -> Iterator[object]:
    while step is not None:
        values = step.tb_frame.f_locals.values()
        yield from (value for value in values if type(value).__module__.partition(".")[0] == "streamer")
        step = step.tb_next
