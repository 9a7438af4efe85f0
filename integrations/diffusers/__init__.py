"""``from_pretrained`` and ``from_single_file`` of diffusers, from any URL, and ``save_pretrained`` to any URL.

Small files are pulled into a private folder, and the unmodified functions load from this folder. They read the weights
from the URL, each component through one read plan: during the call, diffusers' reader of weight files, and for text
encoders the ``safe_open`` of transformers, are replaced for files of this folder. If this does not work with a version
of either library, the weights are written into the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from streamer._checkpoint_headers import pinned
from streamer._save.saving import SaveReport
from streamer.compat.hooks import imported
from streamer.core.errors import OptionError
from streamer.core.options.options import Options
from streamer.integrations.diffusers.hooks import is_placed_by, package_of, placed_models, route_of
from streamer.integrations.diffusers.pipeline_folder import PipelineFolder
from streamer.integrations.folder_saves import check_saves, refuse_arguments_of_save, refuse_hub, saved_folder
from streamer.integrations.kept_folders import keep, name_after
from streamer.integrations.library_calls import Location, check_class, library_call, refuse_arguments_of_load
from streamer.integrations.model_folder import ModelFolder, SingleFile
from streamer.integrations.naming import CONFIG, DIFFUSERS, PIPELINE
from streamer.integrations.routed_call import call_routed

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["from_pretrained", "from_single_file", "save_pretrained"]

_Folder: TypeAlias = "PipelineFolder | ModelFolder"


def from_pretrained(
    cls: Any,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``cls.from_pretrained`` for a pipeline, or for one component of it, in a folder at any URL.

    Configurations, tokenizers and other small files are pulled in parallel, ``*.py`` only with ``trust_remote_code``.
    Weights are read from the URL while the models are filled; they are not written to a disk, unless a ``device_map``
    requests it. Components that the caller passes are not read. If a version of diffusers or transformers cannot be
    made to read from the URL, a line in the log says so, and the weights are written into a private folder that is
    removed afterwards.

    Args:
        cls: ``DiffusionPipeline`` or any pipeline, ``AutoModel`` or any model, any scheduler.
        uri: A folder.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`. Bytes that were read ahead of the current file take at most twice
            its ``memory_limit_bytes``.
        kwargs: Passed on: ``torch_dtype``, ``variant``, ``subfolder`` (of the URL), ``safety_checker=None``, …

    Returns:
        The result of ``cls.from_pretrained``.

    Raises:
        UsageError: `cls` is no such class, the import of diffusers fails, or the weights must be written to a disk that
            has too little room.
        OptionError: an argument requests something that is not supported: another format, or slices for ranks.
        ObjectNotFoundError: the folder has no checkpoint or configuration, a component is missing, or an index names
            an absent shard.
        FormatError: ``model_index.json`` is no index of a pipeline.
        StreamerError: as for `streamer.load`.

    Example:
        >>> pipeline = streamer.diffusers.from_pretrained(DiffusionPipeline, "s3://bucket/sdxl")   # doctest: +SKIP
    """
    check_class(cls, "from_pretrained")
    location = pinned(Location(uri=uri, storage_options=storage_options, fs=fs, options=options))
    refuse_arguments_of_load(kwargs)
    _check_format(kwargs)
    if subfolder := kwargs.pop("subfolder", None):
        location = location.inside(subfolder.strip("/"))
    folder = _folder_for(cls, location, kwargs)
    try:
        loaded = _loaded(cls, folder, lambda: cls.from_pretrained(folder.path, **kwargs), kwargs)
    except BaseException:
        folder.close()
        raise
    _keep(folder, loaded, location)
    return loaded


def from_single_file(
    cls: Any,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``cls.from_single_file`` for a ``.safetensors`` file at any URL.

    Args:
        cls: A pipeline or a model.
        uri: The file.
        storage_options: As for `streamer.load`, for the file and for ``config`` at a URL.
        fs: As for `streamer.load`.
        options: As for `from_pretrained`.
        kwargs: Passed on: ``torch_dtype``, ``original_config``, … and ``config``: a path, a name of the Hub, or the URL
            of a folder whose configurations are pulled.

    Returns:
        The result of ``cls.from_single_file``.

    Raises:
        OptionError: the file has another suffix.
        StreamerError: as for `from_pretrained`.

    Example:
        >>> uri = "s3://bucket/sdxl.safetensors"
        >>> streamer.diffusers.from_single_file(StableDiffusionXLPipeline, uri)                    # doctest: +SKIP
    """
    check_class(cls, "from_single_file")
    file = SingleFile(pinned(Location(uri=uri, storage_options=storage_options, fs=fs, options=options)))
    folder: _Folder | None = None
    try:
        config = kwargs.get("config")
        if isinstance(config, str) and "://" in config:
            there = Location(uri=config, storage_options=storage_options, fs=fs, options=options)
            if subfolder := kwargs.pop("subfolder", None):
                there = there.inside(subfolder.strip("/"))
            folder = _folder_for(cls, there, {}, needs_weights=False)
            kwargs["config"] = folder.path
        loaded = _loaded(cls, file, lambda: cls.from_single_file(file.file_path, **kwargs))
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    finally:
        file.close()
    if folder is not None:
        _keep(folder, loaded, there)
    return loaded


def _folder_for(cls: Any, location: Location, kwargs: Mapping[str, Any], *, needs_weights: bool = True) -> _Folder:
    host = imported(package_of(cls))
    is_model = isinstance(cls, type) and issubclass(cls, (host.AutoModel, host.ModelMixin))
    needed = CONFIG if is_model else getattr(cls, "config_name", None)
    if needed is None:
        raise OptionError(
            f"{cls!r} is no pipeline, model or scheduler of diffusers",
            hint="streamer.transformers.from_pretrained loads the classes of transformers",
        )
    takes_code, variant = bool(kwargs.get("trust_remote_code")), kwargs.get("variant")
    is_placed = is_placed_by(kwargs)
    if needed == PIPELINE:
        return PipelineFolder(
            location,
            given=kwargs,
            variant=variant,
            needs_weights=needs_weights,
            takes_code=takes_code,
            goes_to_devices=is_placed,
        )
    return ModelFolder(
        location,
        naming=DIFFUSERS,
        variant=variant,
        needs=needed,
        needs_weights=is_model and needs_weights,
        takes_code=takes_code,
        goes_to_devices=is_placed,
    )


def _loaded(
    cls: Any, folder: _Folder | SingleFile, call: Callable[[], Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a function of diffusers while the weights of a folder are read from the URL; `kwargs` are its arguments."""
    package, models = package_of(cls), [] if isinstance(folder, SingleFile) else _models(folder)
    parts = [folder] if isinstance(folder, SingleFile) else models
    try:
        with library_call(folder.labels, loads_model=True), placed_models(models, kwargs or {}):
            return call_routed(call, [route_of(part, package) for part in parts if part.shards])
    finally:
        folder.stop()


def _keep(folder: _Folder, loaded: Any, location: Location) -> None:
    first = loaded[0] if isinstance(loaded, tuple) and loaded else loaded
    is_pipeline = isinstance(folder, PipelineFolder)
    objects = [first, *(each for each in first.components.values() if each is not None)] if is_pipeline else [first]
    name_after(objects, folder.path, location)
    keep(folder, _models(folder), objects)


def _models(folder: _Folder) -> list[ModelFolder]:
    return [*folder.components.values()] if isinstance(folder, PipelineFolder) else [folder]


def _check_format(kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("use_safetensors") is False or kwargs.get("use_flashpack") or kwargs.get("use_onnx"):
        raise OptionError("only safetensors are read from a URL", hint="Download the folder for another format")
    how = kwargs.get("parallel_config")
    if hasattr(how, "tp_degree") or getattr(how, "tensor_parallel_config", None) is not None:
        raise OptionError(
            "tensor parallelism of diffusers reads slices of files on a disk",
            hint="Download the folder, or load the model and call enable_parallelism",
        )


def save_pretrained(
    model: Any,
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> SaveReport:
    """Call ``save_pretrained`` of a pipeline or one of its models for a folder at any URL.

    Works like `streamer.transformers.save_pretrained`: it sends the weights from memory, shows nothing incomplete and
    replaces no file.

    Args:
        model: A pipeline, a model or a scheduler.
        uri: A folder without files.
        storage_options: As for `streamer.save`.
        options: As for `streamer.save`.
        kwargs: Passed on: ``variant``, ``max_shard_size``, …

    Raises:
        UsageError: the folder is not empty, the storage cannot be written, or `model` has no ``save_pretrained``.
        OptionError: ``push_to_hub=True``, or an argument of `streamer.save` such as ``key=``.
        StorageError: as for `streamer.save`.

    Example:
        >>> streamer.diffusers.save_pretrained(pipeline, "s3://bucket/pipeline")              # doctest: +SKIP
    """
    refuse_hub(kwargs)
    check_saves(model)
    refuse_arguments_of_save(kwargs, model.save_pretrained)
    loaded = [each for each in ("transformers.modeling_utils", "peft.peft_model") if each in sys.modules]
    return saved_folder(
        lambda folder: model.save_pretrained(folder, **kwargs),
        uri,
        ["safetensors.torch", *loaded],
        storage_options=storage_options,
        options=options,
    )
