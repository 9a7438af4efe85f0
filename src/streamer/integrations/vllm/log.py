"""Lines of this package in vLLM's log, which shows only those of its own loggers."""

from __future__ import annotations

import logging

__all__ = ["LOGGER", "forward_log"]

LOGGER = "vllm.streamer"


class _Forwarding(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        theirs = logging.getLogger(LOGGER)
        if theirs.isEnabledFor(record.levelno):
            theirs.handle(record)


def forward_log() -> None:
    """Let warnings and notes of this package appear where those of vLLM do; to be called as often as one likes."""
    own = logging.getLogger("streamer")
    if not any(isinstance(each, _Forwarding) for each in own.handlers):
        own.addHandler(_Forwarding())
        if own.level == logging.NOTSET:
            own.setLevel(logging.INFO)
