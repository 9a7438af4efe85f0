"""The names of ``safetensors.numpy``; a file to load or to save may be any URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import numpy as theirs
from safetensors.numpy import load

from streamer._save import save as ours
from streamer.compat.safetensors._handle import safe_open
from streamer.compat.safetensors._saves import as_safetensors, file_at, is_url
from streamer.core.options.options import Options
from streamer.core.tensors.tensor_bytes import check_no_mask, is_array

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
    with safe_open(filename, "np", backend=backend, storage_options=storage_options, options=options) as handle:
        arrays: dict[str, NDArray[Any]] = handle.get_tensors()
    return arrays


def save(tensor_dict: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a file of these arrays, as ``safetensors.numpy.save`` does; a view is saved as it shows.

    Args:
        tensor_dict: By name.
        metadata: For the header.

    Raises:
        UsageError: an array has a mask.
        Exception: what safetensors raises.
    """
    return theirs.save(_in_rows(tensor_dict), metadata)


def save_file(
    tensor_dict: Mapping[str, NDArray[Any]],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> None:
    """Save arrays to a file, as ``safetensors.numpy.save_file`` does; a URL goes to `streamer.save`.

    Args:
        tensor_dict: By name.
        filename: A path, or a URL that ends in ``.safetensors``; an existing file is replaced.
        metadata: For the header.
        storage_options: As for `streamer.save`; for URLs.
        options: As for `streamer.save`; for URLs.

    Raises:
        UsageError: an array has a mask; the URL does not end in ``.safetensors``, or cannot be written; and as
            `streamer.save`.
        StorageError: as for `streamer.save`.
        Exception: what safetensors raises, for a path.
    """
    if not is_url(filename):
        theirs.save_file(_in_rows(tensor_dict), filename, metadata)
        return
    for name, array in tensor_dict.items():
        check_no_mask(name, array)
    ours.save(tensor_dict, file_at(filename), **as_safetensors(metadata, storage_options, options))


def _in_rows(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Copy what does not lie row by row: safetensors ignores strides, and writes what is behind the first element."""
    for name, array in arrays.items():
        check_no_mask(name, array)
    return {name: np.asarray(array, order="C") if is_array(array) else array for name, array in arrays.items()}
