"""Shows log lines of this package in vLLM's log, which contains only lines of vLLM's own loggers."""

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
    """Forward log lines of this package to vLLM's log; further calls do nothing."""
    own = logging.getLogger("streamer")
    if not any(isinstance(each, _Forwarding) for each in own.handlers):
        own.addHandler(_Forwarding())
        if own.level == logging.NOTSET:
            own.setLevel(logging.INFO)
