"""``from_pretrained`` and ``save_pretrained`` of transformers, from and to any URL.

Small files are pulled into a private folder, and the unmodified ``from_pretrained`` loads from this folder. It reads
the weights from the URL, through one read plan: during the call, ``safe_open`` in modules of transformers is replaced
for files of this folder. If a version of transformers does not allow this, the weights are written into the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from streamer._checkpoint_headers import pinned
from streamer._save.saving import SaveReport
from streamer.compat.hooks import imported
from streamer.core.errors import OptionError
from streamer.core.options.options import Options
from streamer.integrations.folder_saves import check_saves, refuse_arguments_of_save, refuse_hub, saved_folder
from streamer.integrations.kept_folders import keep, name_after
from streamer.integrations.library_calls import Location, check_class, library_call, refuse_arguments_of_load
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import CONFIG, goes_to_devices
from streamer.integrations.routed_call import RoutedFolder, call_routed
from streamer.integrations.transformers.hooks import (
    late_readers,
    package_of,
    placed_tensors,
    placement_hook,
    readers,
    weights_hook,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["from_pretrained", "save_pretrained"]

# With one of these arguments, each rank reads parts of tensors.
_RANK_ARGUMENTS = ("tp_plan", "tp_size", "device_mesh", "distributed_config")


def from_pretrained(
    cls: Any,
    uri: str | os.PathLike[str],
    *model_args: Any,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``cls.from_pretrained`` for a model, tokenizer, processor or configuration in a folder at any URL.

    Configuration, tokenizer and other small files are pulled in parallel, ``*.py`` only with ``trust_remote_code``.
    Weights are read from the URL while the model is filled; they are not written to a disk. An adapter (PEFT) is
    loaded with the model that it names. One model is loaded at a time in a process: other threads wait. If a version of
    transformers cannot be made to read from the URL, a line in the log says so, and the weights are written into a
    private folder that is removed afterwards.

    Args:
        cls: Any class of transformers with ``from_pretrained``: ``AutoModelForCausalLM``, ``AutoTokenizer``, …
        uri: A folder.
        model_args: Passed on.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`. Tensors that were read and are not in the model yet take at most
            twice its ``memory_limit_bytes``.
        kwargs: Passed on: ``dtype``, ``device_map``, ``variant``, ``subfolder`` (of the URL), …

    Returns:
        The result of ``cls.from_pretrained``.

    Raises:
        UsageError: `cls` is no such class, the import of transformers fails, or the weights must be written to a disk
            that has too little room.
        OptionError: an argument requests another format, which is not supported, or is one of `streamer.load`.
        ObjectNotFoundError: the folder has no checkpoint, configuration or adapter, or its index names an absent shard.
        StreamerError: as for `streamer.load`.

    Example:
        >>> model = streamer.transformers.from_pretrained(AutoModel, "s3://bucket/model")     # doctest: +SKIP
    """
    check_class(cls, "from_pretrained")
    location = pinned(Location(uri=uri, storage_options=storage_options, fs=fs, options=options))
    refuse_arguments_of_load(kwargs)
    _check_format(kwargs)
    if subfolder := kwargs.pop("subfolder", None):
        location = location.inside(subfolder.strip("/"))
    return _loaded(cls, location, model_args, kwargs)


def _loaded(cls: Any, location: Location, model_args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    package = package_of(cls)
    is_model = _is_model(cls, package)
    if is_model:
        kwargs.pop("disable_mmap", None)  # nothing is mapped
    is_placed = is_model and goes_to_devices(kwargs.get("device_map")) and placement_hook(package).fits()
    folder = ModelFolder(
        location,
        variant=kwargs.get("variant"),
        needs=CONFIG if is_model and kwargs.get("config") is None else None,
        needs_weights=is_model,
        takes_code=bool(kwargs.get("trust_remote_code")),
        takes_parts=any(kwargs.get(name) for name in _RANK_ARGUMENTS),
        goes_to_devices=is_placed,
    )
    try:
        with library_call(folder.labels, loads_model=is_model), placed_tensors(package) if is_placed else nullcontext():
            try:
                loaded = call_routed(
                    lambda: cls.from_pretrained(folder.path, *model_args, **kwargs),
                    _routes(folder, package) if is_model else [],
                )
            finally:
                folder.stop()
        _keep(folder, loaded, location, package)
    except BaseException:
        folder.close()
        raise
    return loaded


def _routes(folder: ModelFolder, package: str) -> list[RoutedFolder]:
    return [
        RoutedFolder(each, dict.fromkeys(readers(package), each.opened), weights_hook(package))
        for each in (folder, folder.base)
        if each is not None
    ]


def _is_model(cls: Any, package: str) -> bool:
    return hasattr(cls, "from_config") or (isinstance(cls, type) and issubclass(cls, imported(package).PreTrainedModel))


def _check_format(kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("gguf_file") or kwargs.get("use_safetensors") is False:
        raise OptionError("only safetensors are read from a URL", hint="Download the folder for another format")


def _keep(folder: ModelFolder, loaded: Any, location: Location, package: str) -> None:
    first = loaded[0] if isinstance(loaded, tuple) and loaded else loaded
    name_after([first], folder.path, location)
    late = late_readers(package, first)
    if late:  # these readers find the checkpoint by this name
        first.config.name_or_path = folder.path
    keep(folder, filter(None, (folder, folder.base)), [first], late)


def save_pretrained(
    model: Any,
    uri: str | os.PathLike[str],
    *others: Any,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> SaveReport:
    """Call ``save_pretrained`` of a model, and of its tokenizer or processor, for a folder at any URL.

    transformers decides on names, shards and conversions, as it does for a local folder. The weights are sent from
    memory, one shard after the other; configuration and other small files follow. The index, or the only file of
    weights, shows up last. If the save fails, no file stays.

    Args:
        model: Anything with ``save_pretrained``: a model, an adapter (PEFT), a configuration.
        uri: A folder without files.
        others: Objects that belong to the model: a tokenizer, a processor, a generation configuration.
        storage_options: As for `streamer.save`.
        options: As for `streamer.save`.
        kwargs: Passed on to ``model.save_pretrained``: ``max_shard_size``, ``variant``, ``state_dict``, …

    Returns:
        The report, with the names of the written files.

    Raises:
        UsageError: the folder is not empty, the storage cannot be written, or an argument has no ``save_pretrained``.
        OptionError: ``push_to_hub=True``, or an argument of `streamer.save` such as ``key=``.
        StorageError: as for `streamer.save`.

    Example:
        >>> streamer.transformers.save_pretrained(model, "s3://bucket/model", tokenizer)      # doctest: +SKIP
    """
    refuse_hub(kwargs)
    for each in (model, *others):
        check_saves(each)
    refuse_arguments_of_save(kwargs, model.save_pretrained)
    modules = ["transformers.modeling_utils", *(["peft.peft_model"] if "peft.peft_model" in sys.modules else [])]

    def save(folder: str) -> None:
        model.save_pretrained(folder, **kwargs)
        for each in others:
            each.save_pretrained(folder)

    return saved_folder(save, uri, modules, storage_options=storage_options, options=options)
