"""accelerate's functions that load and save models and whole states, for any URL.

``load_checkpoint_in_model`` and ``load_checkpoint_and_dispatch`` run unmodified, from a private folder that holds only
an index. They read the weights from the URL, through one read plan of all shards: during the call, the safetensors
readers in ``accelerate.utils.modeling`` are replaced for files of this folder. If a version of accelerate does not
allow this, the weights are written into the folder.

accelerate decides what belongs to a state: models, optimizers, schedulers, samplers, the scaler, random numbers, and
objects that were registered. The weights of models are sent from memory, all other files through a private folder.
Guarantees: a state shows up whole or not at all, with its first model last. Several processes are refused, because only
a shared file system would bring their files together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from streamer._checkpoint_headers import pinned
from streamer._pull.record import PullArguments
from streamer._push.push import Target, push
from streamer._save.saving import SaveReport
from streamer.compat.hooks import Hook, imported, is_equal
from streamer.core.collector import past_frozen
from streamer.core.errors import OptionError, UsageError
from streamer.core.folders.private_folders import private_folder
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.shards.small_files import folder_files
from streamer.integrations.folder_saves import refuse_arguments_of_save, saved_folder
from streamer.integrations.folder_weights import FolderWeights
from streamer.integrations.library_calls import Location
from streamer.integrations.naming import TRANSFORMERS
from streamer.integrations.routed_call import Reader, RoutedFolder, RoutedName, call_routed, routed
from streamer.integrations.small_checkpoint import small_checkpoint

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def save_state(
    accelerator: Any,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> SaveReport:
    """Call ``accelerator.save_state`` for a folder at any URL.

    Args:
        accelerator: An ``accelerate.Accelerator`` of one process, without ``automatic_checkpoint_naming``.
        uri: A folder without files, one for each state: ``f"s3://bucket/run/step-{step}"``.
        storage_options: As for `streamer.save`.
        options: As for `streamer.save`.
        kwargs: Passed on.

    Raises:
        UsageError: the folder is not empty, the storage cannot be written, or there are several processes.
        OptionError: ``safe_serialization=False``, accelerate is to choose the folder, or an argument of `streamer.save`
            such as ``key=``.
        StorageError: as for `streamer.save`; no file is left.

    Example:
        >>> streamer.accelerate.save_state(accelerator, "s3://bucket/run/step-1000")          # doctest: +SKIP
    """
    _check(accelerator)
    refuse_arguments_of_save(kwargs, accelerator.save_state)
    if not kwargs.get("safe_serialization", True):
        raise OptionError("safe_serialization=False writes pickles", hint="Leave it out: safetensors are written")
    return saved_folder(
        lambda folder: accelerator.save_state(folder, **kwargs),
        uri,
        ["accelerate.utils.other"],
        storage_options=storage_options,
        options=options,
    )


def load_state(
    accelerator: Any,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> None:
    """Call ``accelerator.load_state`` for a folder at any URL, which `save_state` or accelerate has written.

    All files are read into a private folder first, and compared with the digests of the storage. accelerate reads the
    files that are no safetensors with ``torch.load``: load states only from places that you trust.

    Args:
        accelerator: As for `save_state`, prepared with the same models, optimizers and schedulers as for the save.
        uri: The folder.
        storage_options: As for `streamer.load`.
        options: As for `streamer.load`.
        kwargs: Passed on: ``load_kwargs``, …

    Raises:
        UsageError: there are several processes.
        OptionError: accelerate is to choose the folder.
        ObjectNotFoundError: there are no files.
        StreamerError: as for `streamer.load`.

    Example:
        >>> streamer.accelerate.load_state(accelerator, "s3://bucket/run/step-1000")          # doctest: +SKIP
    """
    _check(accelerator)
    with private_folder() as folder:
        state = os.path.join(folder, "state")
        push(
            os.fspath(uri),
            Target(state),
            PullArguments(storage_options=storage_options, options=options),
            progress=False,
        )
        accelerator.load_state(state, **kwargs)


def _check(accelerator: Any) -> None:
    if accelerator.num_processes > 1:
        hint = "Save with streamer.dcp.StorageWriter, in which each process writes its part"
        raise UsageError(f"accelerate runs {accelerator.num_processes} processes", hint=hint)
    if accelerator.project_configuration.automatic_checkpoint_naming:
        hint = "Leave automatic_checkpoint_naming out, and name a folder for each state"
        raise OptionError("accelerate would choose the folder itself", hint=hint)


_Result = TypeVar("_Result")

INDEX = "model.safetensors.index.json"
_SAFE_OPEN = RoutedName("accelerate.utils.modeling", "safe_open", ("safetensors", "safe_open"))
_LOAD_FILE = RoutedName("accelerate.utils.modeling", "safe_load_file", ("safetensors.torch", "load_file"))
_LOAD_STATE = RoutedName("accelerate.utils.modeling", "load_state_dict")


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

    No weights are written to a disk, except those that `device_map` sends to ``"disk"`` or ``offload_state_dict``
    writes. If a version of accelerate cannot be made to read from the URL, a line in the log says so, and the weights
    are written into a private folder that is removed afterwards.

    Args:
        model: The model to fill, for instance one of ``init_empty_weights``.
        uri: A file, a folder or an index.
        arguments: Passed on.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`. Bytes that were read ahead of the current shard take at most
            twice its ``memory_limit_bytes``.
        kwargs: Passed on: ``device_map``, ``offload_folder``, ``dtype``, ``strict``, …

    Raises:
        UsageError: accelerate is not installed, its import fails, or the weights must be written to a disk that has too
            little room.
        OptionError: `uri` names a file of another format.
        ObjectNotFoundError: there is no checkpoint, or its index names an absent shard.
        StreamerError: as for `streamer.load`.

    Example:
        >>> streamer.accelerate.load_checkpoint_in_model(model, "s3://bucket/model")             # doctest: +SKIP
    """
    accelerate = imported("accelerate")
    _with_folder(
        pinned(Location(uri=uri, storage_options=storage_options, fs=fs, options=options)),
        lambda folder: accelerate.load_checkpoint_in_model(model, folder, *arguments, **kwargs),
    )


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
        model: The model to fill, for instance one of ``init_empty_weights``.
        uri: A file, a folder or an index.
        arguments: Passed on.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: As for `load_checkpoint_in_model`.
        kwargs: Passed on: ``device_map``, ``max_memory``, ``offload_folder``, ``no_split_module_classes``, …

    Returns:
        The model, as ``accelerate.load_checkpoint_and_dispatch`` returns it.

    Raises:
        StreamerError: as for `load_checkpoint_in_model`.

    Example:
        >>> uri = "s3://bucket/model"
        >>> streamer.accelerate.load_checkpoint_and_dispatch(model, uri, device_map="auto")      # doctest: +SKIP
    """
    accelerate = imported("accelerate")
    return _with_folder(
        pinned(Location(uri=uri, storage_options=storage_options, fs=fs, options=options)),
        lambda folder: accelerate.load_checkpoint_and_dispatch(model, folder, *arguments, **kwargs),
    )


def _with_folder(location: Location, call: Callable[[str], _Result]) -> _Result:
    """Call accelerate with a folder that holds only the index of a checkpoint."""
    with ExitStack() as stack:
        stack.enter_context(past_frozen())
        weights = _private_weights(_chosen(location), stack)
        readers = _readers(weights) | _placing_readers(weights)
        return call_routed(lambda: call(weights.path), [RoutedFolder(weights, readers, HOOK)])


def _private_weights(location: Location, stack: ExitStack) -> FolderWeights:
    folder = stack.enter_context(private_folder())
    weights = FolderWeights(os.path.abspath(folder), location)
    stack.callback(weights.stop)
    weights.write_index(INDEX)
    return weights


def _readers(weights: FolderWeights) -> dict[RoutedName, Reader]:
    return {_SAFE_OPEN: weights.opened_whole, _LOAD_FILE: weights.loaded}


def _placing_readers(weights: FolderWeights) -> dict[RoutedName, Reader]:
    """Return a wrapper of accelerate's shard reader that records the devices of tensors before the file is opened."""

    def placed(_path: str, device_map: Mapping[str, Any] | None = None, **_others: Any) -> None:
        weights.place(device_map or {})

    return {_LOAD_STATE: placed} if PLACEMENT.fits() else {}


def _reads_small_files() -> bool:
    """Whether accelerate reads equal tensors from a URL and from files, with and without a ``device_map``."""
    read = imported("accelerate.utils.modeling").load_state_dict
    for device_map in ({"": "cpu"}, None):
        with ExitStack() as stack:
            location, expected = stack.enter_context(small_checkpoint())
            weights = _private_weights(location, stack)
            stack.enter_context(routed(weights.path, _readers(weights)))
            for folder in (weights.path, location.uri):
                paths = [os.path.join(folder, shard) for shard in weights.shards]
                state = {name: tensor for path in paths for name, tensor in read(path, device_map).items()}
                if not is_equal(state, expected):
                    return False
    return True


HOOK = Hook(
    "accelerate.utils.modeling",
    "safe_open",
    otherwise="weights are written to a private folder on a disk before they are loaded, which is slower",
    dry_run=_reads_small_files,
)

PLACEMENT = Hook(
    "accelerate.utils.modeling",
    "load_state_dict",
    otherwise="tensors are copied to several devices one after the other from pageable memory, which is slower",
    positional=1,
    keywords=("device_map",),
)


def _chosen(location: Location) -> Location:
    """Return the location that accelerate would choose in a folder: one file is preferred to an index."""
    name = location.uri.partition("?")[0].rstrip("/").rpartition("/")[2]
    if name.endswith((".bin", ".pt", ".pth", ".ckpt")):
        raise OptionError("only safetensors are read from a URL", uri=location.label, hint="Convert it, or download it")
    if name.endswith((".safetensors", ".json")) or "*" in name:
        return location
    with location.store(resolve(location.options)) as store:
        listed = folder_files(store, TRANSFORMERS.usual)
    return TRANSFORMERS.choose(listed, None, location).location


def save_model(
    accelerator: Any,
    model: Any,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> SaveReport:
    """Call ``accelerator.save_model`` for a folder at any URL.

    Works like `streamer.transformers.save_pretrained`: it sends the weights from memory, shows nothing incomplete and
    replaces no file. Call it on the main process only.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        model: As for its ``save_model``.
        uri: A folder without files.
        storage_options: As for `streamer.save`.
        options: As for `streamer.save`.
        kwargs: Passed on: ``max_shard_size``.

    Raises:
        UsageError: the folder is not empty, or the storage cannot be written.
        OptionError: ``safe_serialization=False``, which writes pickles; or an argument of `streamer.save`: ``key=``.
        StorageError: as for `streamer.save`.

    Example:
        >>> streamer.accelerate.save_model(accelerator, model, "s3://bucket/model")           # doctest: +SKIP
    """
    refuse_arguments_of_save(kwargs, accelerator.save_model)
    if not kwargs.get("safe_serialization", True):
        raise OptionError("safe_serialization=False writes pickles", hint="Leave it out: safetensors are written")
    return saved_folder(
        lambda folder: accelerator.save_model(model, folder, **kwargs),
        uri,
        ["accelerate.utils.other"],
        storage_options=storage_options,
        options=options,
    )
