"""What an error shows to a person, a log or a tracker: texts, attributes and pickle of it, its causes and contexts."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from types import TracebackType

from streamer import StreamerError
from streamer.core.causes import with_causes


def shown_by(error: BaseException) -> list[str]:
    """Return all texts that an error shows, causes included, and the reprs of our own objects that its frames hold."""
    texts = traceback.format_exception(error)
    for shown in with_causes(error):  # contexts, too, that a traceback leaves out
        texts += [str(shown), repr(shown), *map(str, getattr(shown, "__notes__", ())), repr(vars(shown))]
        texts += [f"{type(value).__name__}: {value!r}" for value in _own_objects(shown.__traceback__)]
        if isinstance(shown, StreamerError):
            texts.append(repr(pickle.dumps(shown)))
    return texts


def _own_objects(step: TracebackType | None) -> Iterator[object]:
    while step is not None:
        values = step.tb_frame.f_locals.values()
        yield from (value for value in values if type(value).__module__.partition(".")[0] == "streamer")
        step = step.tb_next
