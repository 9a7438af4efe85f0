"""How files are saved to URLs under the names of safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamer.core.errors import UsageError
from streamer.core.format.shard_names import SHARD_SUFFIX
from streamer.core.options.options import Options
from streamer.core.secrets.redact import redact

__all__ = ["as_safetensors", "file_at", "is_url"]


def is_url(filename: Any) -> bool:
    """Say whether a file is not on a disk, so that safetensors cannot write it."""
    return isinstance(filename, str) and ("://" in filename or "::" in filename)


def file_at(filename: str | os.PathLike[str]) -> str:
    """Return the URL of a file.

    Raises:
        UsageError: a save would take it for a folder.
    """
    uri = os.fspath(filename)
    if not uri.endswith(SHARD_SUFFIX):
        raise UsageError("the name of a file at a URL must end in .safetensors", uri=redact(uri), hint="Add the suffix")
    return uri


def as_safetensors(
    metadata: dict[str, str] | None, storage_options: Mapping[str, Any] | None, options: Options | None
) -> dict[str, Any]:
    """Return the arguments with which `streamer.save` behaves as safetensors: one file, replaced without a word."""
    return {
        "metadata": metadata,
        "storage_options": storage_options,
        "options": options,
        "overwrite": True,
        "digests": False,
        "progress": False,
    }
