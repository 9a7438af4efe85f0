"""The small files of a model that an engine was given as a URL: all but its weights."""

from __future__ import annotations

import logging

from streamer._pull.pull import Wanted, pull
from streamer.integrations.small_files import LARGEST_BYTES, left_behind

__all__ = ["pull_small_files"]


def pull_small_files(url: str, folder: str, log: logging.Logger, *, takes_code: bool) -> None:
    """Pull them into a folder, once per node.

    Args:
        url: Of the model.
        folder: To fill.
        log: Gets a line about what was pulled.
        takes_code: The user trusts the code in the model's folder.

    Raises:
        StreamerError: as for ``python -m streamer pull``.
        OSError: the folder cannot be written, or has no room.
    """
    wanted = Wanted(exclude=left_behind(takes_code=takes_code), largest_bytes=LARGEST_BYTES)
    report = pull(url, folder, wanted, progress=False, on_wait=log.info)
    log.info("Pulled %d files of %s into %s", report.files, report.uri, folder)
