"""``load_checkpoint_in_model`` and ``load_checkpoint_and_dispatch`` of accelerate, from any URL.

The unmodified functions load from a private folder that has nothing but an index. The weights they read from the URL,
through one read plan of all shards: the names that ``accelerate.utils.modeling`` has for safetensors' readers are ours
for that folder meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamer.compat.versions import may_be_patched
from streamer.core.checkpoint.small_files import folder_files
from streamer.core.errors import OptionError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.secrets.options import hidden
from streamer.core.secrets.urls import hidden_uri
from streamer.integrations.folder_weights import FolderWeights
from streamer.integrations.location import Location
from streamer.integrations.naming import TRANSFORMERS
from streamer.integrations.routed_names import RoutedName, routed

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["TRIED", "load_checkpoint_and_dispatch", "load_checkpoint_in_model"]

TRIED = ("1.15", "1.16")  # versions of accelerate: the first one tried, and the first one not tried

INDEX = "model.safetensors.index.json"
_SAFE_OPEN = RoutedName("accelerate.utils.modeling", "safe_open", ("safetensors", "safe_open"))
_LOAD_FILE = RoutedName("accelerate.utils.modeling", "safe_load_file", ("safetensors.torch", "load_file"))


def load_checkpoint_in_model(
    model: Any,
    uri: str | os.PathLike[str],
    *arguments: Any,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> None:
    """Call ``accelerate.load_checkpoint_in_model`` for a checkpoint at any URL.

    Nothing of the weights is written to a disk, but what `device_map` sends to ``"disk"`` and what
    ``offload_state_dict`` does. A version of accelerate that was not tried gets `uri` as it is.

    Args:
        model: What to fill, for instance of ``init_empty_weights``.
        uri: A file, a folder or an index.
        arguments: Passed on.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`. Its ``memory_limit_bytes`` bounds what was read beyond the shard
            that is being filled in: twice as many at most.
        kwargs: Passed on: ``device_map``, ``offload_folder``, ``dtype``, ``strict``, …

    Raises:
        OptionError: `uri` names a file of another format.
        ObjectNotFoundError: there is no checkpoint, or its index names an absent shard.
        StreamerError: as for `streamer.load`.

    Example:
        >>> streamer.accelerate.load_checkpoint_in_model(model, "s3://bucket/model")             # doctest: +SKIP
    """
    uri, storage_options = hidden_uri(uri), hidden(storage_options)
    import accelerate  # noqa: PLC0415 (takes seconds; the caller has imported it)

    if not may_be_patched("accelerate", TRIED):
        accelerate.load_checkpoint_in_model(model, uri, *arguments, **kwargs)
        return
    with _private_folder(Location.checked(uri, storage_options, fs, options)) as folder:
        accelerate.load_checkpoint_in_model(model, folder, *arguments, **kwargs)


def load_checkpoint_and_dispatch(
    model: Any,
    uri: str | os.PathLike[str],
    *arguments: Any,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``accelerate.load_checkpoint_and_dispatch`` for a checkpoint at any URL.

    Args:
        model: What to fill, for instance of ``init_empty_weights``.
        uri: A file, a folder or an index.
        arguments: Passed on.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: As for `load_checkpoint_in_model`.
        kwargs: Passed on: ``device_map``, ``max_memory``, ``offload_folder``, ``no_split_module_classes``, …

    Returns:
        What ``accelerate.load_checkpoint_and_dispatch`` returns: the model.

    Raises:
        StreamerError: as for `load_checkpoint_in_model`.

    Example:
        >>> uri = "s3://bucket/model"
        >>> streamer.accelerate.load_checkpoint_and_dispatch(model, uri, device_map="auto")      # doctest: +SKIP
    """
    uri, storage_options = hidden_uri(uri), hidden(storage_options)
    import accelerate  # noqa: PLC0415 (takes seconds; the caller has imported it)

    if not may_be_patched("accelerate", TRIED):
        return accelerate.load_checkpoint_and_dispatch(model, uri, *arguments, **kwargs)
    with _private_folder(Location.checked(uri, storage_options, fs, options)) as folder:
        return accelerate.load_checkpoint_and_dispatch(model, folder, *arguments, **kwargs)


@contextmanager
def _private_folder(location: Location) -> Iterator[str]:
    """Give the path of a folder that has the index of a checkpoint, and is read from the URL inside of the block."""
    with tempfile.TemporaryDirectory(prefix="streamer-") as folder:
        path = os.path.abspath(folder)
        weights = FolderWeights(path, _chosen(location))
        weights.write_index(INDEX)
        try:
            with routed(path, {_SAFE_OPEN: weights.opened_whole, _LOAD_FILE: weights.loaded}):
                yield path
        finally:
            weights.stop()


def _chosen(location: Location) -> Location:
    """Choose in a folder as accelerate does: one file before an index."""
    name = location.uri.partition("?")[0].rstrip("/").rpartition("/")[2]
    if name.endswith((".bin", ".pt", ".pth", ".ckpt")):
        raise OptionError("only safetensors are read from a URL", uri=location.label, hint="Convert it, or download it")
    if name.endswith((".safetensors", ".json")) or "*" in name:
        return location
    with location.store(resolve(location.options)) as store:
        listed = folder_files(store, TRANSFORMERS.usual)
    return TRANSFORMERS.choose(listed, None, location).location
