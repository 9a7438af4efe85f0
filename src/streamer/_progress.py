"""Shows the progress of a load: by a bar on a terminal, a callable, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from streamer.core.quoting import printable

__all__ = ["Progress", "ProgressOption"]

# None: a bar on a terminal; a bool: always or never; a callable: called with (bytes done, bytes in all).
ProgressOption: TypeAlias = bool | Callable[[int, int], None] | None

SHOWN_AFTER_S = 0.5  # a load that is over sooner needs no bar
ENVIRONMENT = "STREAMER_PROGRESS"


class Progress:
    """One bar, one callable, or nothing; `update` takes the bytes done so far and may be called often."""

    def __init__(self, option: ProgressOption, total_bytes: int, label: str) -> None:
        self._total_bytes, self._label = total_bytes, printable(label)
        self._call = option if callable(option) else None
        self._shown_bytes = 0
        self._bar = _make_bar(total_bytes, self._label) if _wants_bar(option) else None

    @property
    def is_shown(self) -> bool:
        """Whether `update` shows anything."""
        return self._call is not None or self._bar is not None

    def update(self, done_bytes: int) -> None:
        """Show that `done_bytes` of the total are in place."""
        done_bytes = min(done_bytes, self._total_bytes)
        if self._call is not None and done_bytes != self._shown_bytes:
            self._call(done_bytes, self._total_bytes)
        if self._bar is not None:
            self._bar.update(done_bytes - self._shown_bytes)
        self._shown_bytes = done_bytes

    def note(self, text: str) -> None:
        """Show what a load waits for in place of its label; an empty text restores the label."""
        if self._bar is not None:
            self._bar.set_description_str(printable(text) or self._label)

    def close(self) -> None:
        """Leave the bar as it is and end its line."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _wants_bar(option: ProgressOption) -> bool:
    if isinstance(option, bool):
        return option
    if option is not None or os.environ.get(ENVIRONMENT) == "0":
        return False
    return sys.stderr is not None and sys.stderr.isatty()


def _make_bar(total_bytes: int, label: str) -> Any:
    from tqdm import tqdm  # noqa: PLC0415  only when a bar is shown

    return tqdm(
        total=total_bytes,
        desc=label,
        unit="B",
        unit_scale=True,
        delay=SHOWN_AFTER_S,
        miniters=1,
        dynamic_ncols=True,
        file=sys.stderr,
    )
