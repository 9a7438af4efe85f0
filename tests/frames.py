"""What a traceback with locals shows of the frames of this package."""

from __future__ import annotations

import traceback
from pathlib import Path

import streamer
from streamer import backends, compat, core, integrations, plugins

PACKAGES = (streamer, backends, compat, core, integrations, plugins)
OURS = tuple(str(Path(package.__file__ or "").parent) + "/" for package in PACKAGES)


def shown_by_us(error: BaseException) -> list[str]:
    """What a traceback with locals shows of our frames, causes included; each must be there to be looked at."""
    texts: list[str] = []
    left = [traceback.TracebackException.from_exception(error, capture_locals=True)]
    while left:
        shown = left.pop()
        ours = [frame for frame in shown.stack if frame.filename.startswith(OURS)]
        texts += [f"{frame.name}: {name} = {value}" for frame in ours for name, value in (frame.locals or {}).items()]
        left += [each for each in (shown.__cause__, shown.__context__) if each is not None]
    return texts
