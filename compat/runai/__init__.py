"""Run:ai's model streamer on this package's engine: its C interface, and its public Python names, for any URL.

    >>> import streamer.compat.runai
    >>> path = streamer.compat.runai.library_path()  # the value of STREAMER_LIBRARY for Run:ai's own package

The names have the signatures of version 0.17; ``docs/integrations/runai.md`` lists the differences.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from streamer.compat.runai.installing import install, library_path

if TYPE_CHECKING:
    from streamer.compat.runai.distributed_streamer import DistributedStreamer
    from streamer.compat.runai.file_streamer import FileChunks, FileStreamer
    from streamer.compat.runai.safetensors_streamer.safetensors_streamer import (
        ObjectStorageModel,
        SafetensorsStreamer,
        list_safetensors,
        pull_files,
    )

__all__ = [
    "DistributedStreamer",
    "FileChunks",
    "FileStreamer",
    "ObjectStorageModel",
    "SafetensorsStreamer",
    "install",
    "library_path",
    "list_safetensors",
    "pull_files",
]

_DEFINED_IN = {
    "DistributedStreamer": "distributed_streamer",
    "FileChunks": "file_streamer",
    "FileStreamer": "file_streamer",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: the shared library needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _DEFINED_IN.get(name, "safetensors_streamer.safetensors_streamer")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
