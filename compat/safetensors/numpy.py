"""The names of ``safetensors.numpy``; a file to load may be any URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load, save, save_file

from streamer.compat.safetensors._handle import safe_open
from streamer.core.options.options import Options
from streamer.core.secrets.hidden_arguments import hidden, hidden_uri

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(
    filename: str | os.PathLike[str],
    *,
    backend: str = "mmap",
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> dict[str, NDArray[Any]]:
    """Load all arrays of a file; arguments and errors as for `streamer.compat.safetensors.safe_open`."""
    filename, storage_options = hidden_uri(filename), hidden(storage_options)
    with safe_open(filename, "np", backend=backend, storage_options=storage_options, options=options) as handle:
        arrays: dict[str, NDArray[Any]] = handle.get_tensors()
    return arrays
