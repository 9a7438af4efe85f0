"""Shows the progress of a load: by a bar, a function of the caller, or lines in the log.

Guarantees: no failure here ends a load. A bar whose terminal is closed or full, and a function that raises, are no
longer used, with a warning in the log. Two kinds of exceptions pass: errors of this package (`LoadCancelledError` ends
the load), and those that are no `Exception`, such as `KeyboardInterrupt`.
"""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from streamer.core.errors import StreamerError
from streamer.core.imported import if_imported
from streamer.core.log import OwnLogger
from streamer.core.options.switches_and_sizes import is_on
from streamer.core.quoting import printable, size_text
from streamer.core.request.request import ProgressOption

SHOWN_AFTER_S = 0.5  # a shorter load needs no bar
LOGGED_EVERY_S = 10.0
NUMBERS_COLUMNS = 55  # of a bar: ": 100%|█| 1.23G/1.23G [00:17<00:03, 2.72MB/s]", and some of the bar itself
ENVIRONMENT = "STREAMER_PROGRESS"

_log = OwnLogger()


class _View(Protocol):
    """One way to show progress."""

    def is_due(self) -> bool:
        """Whether `update` would show anything at this moment."""

    def update(self, done_bytes: int) -> None:
        """Show the number of bytes that are in place."""

    def note(self, text: str) -> None:
        """Show a text in place of the label; an empty one restores the label."""

    def close(self) -> None:
        """Stop; what is shown at this moment stays."""


class Progress:
    """Shows one load."""

    def __init__(self, option: ProgressOption, total_bytes: int, label: str) -> None:
        self._total_bytes, self._shown_bytes = total_bytes, 0
        self._view = _view_of(option, total_bytes, printable(label))

    @property
    def is_shown(self) -> bool:
        """Whether `update` ever shows anything."""
        return self._view is not None

    def update(self, count_done: Callable[[], int]) -> None:
        """Show how many bytes are in place; `count_done` is called only if they are shown at this moment."""
        if self._view is None or not self._view.is_due():
            return
        done_bytes = min(count_done(), self._total_bytes)
        if done_bytes != self._shown_bytes:
            self._shown_bytes = done_bytes
            self._show(self._view.update, done_bytes)

    def note(self, text: str) -> None:
        """Show a text in place of the label, such as the reason of a wait; an empty text restores the label."""
        if self._view is not None:
            self._show(self._view.note, printable(text))

    def close(self) -> None:
        """Stop; what is shown at this moment stays."""
        if self._view is not None:
            self._show(self._view.close)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _show(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except StreamerError:
            raise
        except Exception as error:
            self._view = None
            _log.warning("the progress is no longer shown: %s", printable(repr(error)))


def _view_of(option: ProgressOption, total_bytes: int, label: str) -> _View | None:
    if callable(option):
        return _Function(option, total_bytes)
    if option is False or (option is None and not is_on(ENVIRONMENT, default=True)):
        return None
    if option or _is_watched():
        try:
            return _Bar(total_bytes, label)
        except Exception as error:  # a notebook without widgets, a closed terminal
            _log.warning("no progress bar can be shown: %s", printable(repr(error)))
    return _LogLines(total_bytes, label)


def _is_watched() -> bool:
    """Whether a bar would be seen: on a terminal, or in a notebook, in which tqdm chooses a widget."""
    if is_terminal():
        return True
    shell = getattr(if_imported("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def is_terminal() -> bool:
    """Whether standard error is a terminal; it may be None, another object, or a closed file."""
    try:
        return sys.stderr.isatty()
    except Exception:
        return False


class _Function:
    """A function of the caller."""

    def __init__(self, call: Callable[[int, int], None], total_bytes: int) -> None:
        self._call, self._total_bytes = call, total_bytes

    def is_due(self) -> bool:
        return True

    def update(self, done_bytes: int) -> None:
        self._call(done_bytes, self._total_bytes)

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar:
    """A bar of tqdm."""

    def __init__(self, total_bytes: int, label: str) -> None:
        # tqdm cuts the end of a line, where its numbers are.
        room = max(10, shutil.get_terminal_size().columns - NUMBERS_COLUMNS)
        self._label, self._shown_bytes = label if len(label) <= room else f"…{label[1 - room :]}", 0
        self._bar = _bar_class()(
            total=total_bytes,
            desc=self._label,
            unit="B",
            unit_scale=True,
            delay=SHOWN_AFTER_S,
            miniters=1,
            dynamic_ncols=True,
            file=sys.stderr,
        )

    def is_due(self) -> bool:
        return True

    def update(self, done_bytes: int) -> None:
        self._bar.update(done_bytes - self._shown_bytes)
        self._shown_bytes = done_bytes

    def note(self, text: str) -> None:
        self._bar.set_description_str(text or self._label)

    def close(self) -> None:
        self._bar.close()


def _bar_class() -> Any:
    """Return tqdm's class of bars, without its fault: if text cannot be written, `refresh` keeps the lock of all bars.

    Other threads that show a bar then wait for ever, for example the loading of a model in transformers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns in a notebook without widgets, and shows text in it
        from tqdm.auto import tqdm  # noqa: PLC0415  only when a bar is shown

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types here: it chooses a class for the terminal or the notebook
        def refresh(self, nolock: bool = False, **_: Any) -> Any:
            if nolock:
                return super().refresh(nolock=True)
            with self.get_lock():  # our bars pass no arguments for the lock
                return super().refresh(nolock=True)

    return Bar


class _LogLines:
    """A line in the log at intervals: without a terminal, a load of minutes must not look as if it hangs."""

    def __init__(self, total_bytes: int, label: str) -> None:
        self._total_bytes, self._label = total_bytes, label
        self._began = self._last = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() >= self._last + LOGGED_EVERY_S

    def update(self, done_bytes: int) -> None:
        self._last = time.monotonic()
        elapsed_s = self._last - self._began
        done, total = size_text(done_bytes), size_text(self._total_bytes)
        _log.info("%s: %s of %s in %.0f s", self._label, done, total, elapsed_s)

    def note(self, text: str) -> None:
        pass  # outages have lines of their own

    def close(self) -> None:
        pass
