"""Pulls the small files of a model whose name is a URL: all files except its weights."""

from __future__ import annotations

import logging

from streamer._pull.pull import Wanted, pull
from streamer.integrations.small_files import LARGEST_BYTES, left_behind

__all__ = ["pull_small_files"]


def pull_small_files(url: str, folder: str, log: logging.Logger, *, takes_code: bool) -> None:
    """Pull the small files of a model into a folder, once per node.

    Args:
        url: The URL of the model.
        folder: The folder to fill.
        log: The logger for a line on the pulled files.
        takes_code: Whether the user trusts the code in the model's folder.

    Raises:
        StreamerError: as for ``python -m streamer pull``.
        OSError: the folder cannot be written, or has no room.
    """
    wanted = Wanted(exclude=left_behind(takes_code=takes_code), largest_bytes=LARGEST_BYTES)
    report = pull(url, folder, wanted, progress=False, on_wait=log.info)
    log.info("Pulled %d files of %s into %s", report.files, report.uri, folder)
