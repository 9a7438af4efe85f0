"""``from_pretrained`` and ``from_single_file`` of diffusers, from any URL.

Small files are pulled into a private folder, and the unmodified functions load from that. The weights they read from
the URL, each component through one read plan: what diffusers calls to read a file of weights, and the ``safe_open`` of
transformers for the text encoders, are ours for that folder meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from streamer.compat.versions import may_be_patched
from streamer.core.errors import OptionError
from streamer.core.options.options import Options
from streamer.core.secrets.options import hidden
from streamer.core.secrets.urls import hidden_uri
from streamer.integrations import transformers
from streamer.integrations.kept_folders import keep, name_after
from streamer.integrations.library_calls import check_class, library_call
from streamer.integrations.location import Location
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import CONFIG, DIFFUSERS, PIPELINE
from streamer.integrations.pipeline_folder import PipelineFolder
from streamer.integrations.routed_names import RoutedName, routed
from streamer.integrations.single_file import SingleFile

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["TRIED", "from_pretrained", "from_single_file"]

TRIED = ("0.42", "0.43")  # versions of diffusers: the first one tried, and the first one not tried

_Folder: TypeAlias = "PipelineFolder | ModelFolder"

# Each module has a name of its own for the one function that reads a file.
_READERS = [
    RoutedName(f"diffusers.{module}", "load_state_dict")
    for module in ("models.model_loading_utils", "models.modeling_utils", "loaders.single_file_utils")
]


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
    Weights are read from the URL while the models are filled; nothing of them is written to a disk, unless a
    ``device_map`` says so. Components that are given are not read. A version of diffusers that was not tried gets
    `uri` as it is.

    Args:
        cls: ``DiffusionPipeline`` or any pipeline, ``AutoModel`` or any model, any scheduler.
        uri: A folder.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`. Its ``memory_limit_bytes`` bounds what was read beyond the file
            that is being filled in: twice as many at most.
        kwargs: Passed on: ``torch_dtype``, ``variant``, ``subfolder`` (of the URL), ``safety_checker=None``, …

    Returns:
        What ``cls.from_pretrained`` returns.

    Raises:
        OptionError: an argument asks for what is not read here: another format, or slices for several ranks.
        ObjectNotFoundError: the folder has no checkpoint or configuration, a component is missing, or an index names
            an absent shard.
        FormatError: ``model_index.json`` is no index of a pipeline.
        StreamerError: as for `streamer.load`.

    Example:
        >>> pipeline = streamer.diffusers.from_pretrained(DiffusionPipeline, "s3://bucket/sdxl")   # doctest: +SKIP
    """
    uri, storage_options = hidden_uri(uri), hidden(storage_options)
    check_class(cls, "from_pretrained")
    if not _is_possible():
        return cls.from_pretrained(uri, **kwargs)
    location = Location.checked(uri, storage_options, fs, options)
    _check_format(kwargs)
    if subfolder := kwargs.pop("subfolder", None):
        location = location.inside(subfolder.strip("/"))
    folder = _folder_for(cls, location, kwargs)
    try:
        loaded = _loaded(folder, lambda: cls.from_pretrained(folder.path, **kwargs))
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
        What ``cls.from_single_file`` returns.

    Raises:
        OptionError: the file has another suffix.
        StreamerError: as for `from_pretrained`.

    Example:
        >>> uri = "s3://bucket/sdxl.safetensors"
        >>> streamer.diffusers.from_single_file(StableDiffusionXLPipeline, uri)                    # doctest: +SKIP
    """
    uri, storage_options = hidden_uri(uri), hidden(storage_options)
    check_class(cls, "from_single_file")
    if not _is_possible():
        return cls.from_single_file(uri, **kwargs)
    file = SingleFile(Location.checked(uri, storage_options, fs, options))
    folder: _Folder | None = None
    try:
        config = kwargs.get("config")
        if isinstance(config, str) and "://" in config:
            there = Location.checked(config, storage_options, fs, options)
            if subfolder := kwargs.pop("subfolder", None):
                there = there.inside(subfolder.strip("/"))
            folder = _folder_for(cls, there, {}, needs_weights=False)
            kwargs["config"] = folder.path
        loaded = _loaded(file, lambda: cls.from_single_file(file.file_path, **kwargs))
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    finally:
        file.close()
    if folder is not None:
        _keep(folder, loaded, there)
    return loaded


def _is_possible() -> bool:
    if not may_be_patched("diffusers", TRIED):
        return False
    return find_spec("transformers") is None or may_be_patched("transformers", transformers.TRIED)


def _folder_for(cls: Any, location: Location, kwargs: Mapping[str, Any], *, needs_weights: bool = True) -> _Folder:
    from diffusers import AutoModel, ModelMixin  # noqa: PLC0415 (takes seconds; the caller has imported it)

    is_model = isinstance(cls, type) and issubclass(cls, (AutoModel, ModelMixin))
    needed = CONFIG if is_model else getattr(cls, "config_name", None)
    if needed is None:
        raise OptionError(
            f"{cls!r} is no pipeline, model or scheduler of diffusers",
            hint="streamer.transformers.from_pretrained loads the classes of transformers",
        )
    takes_code, variant = bool(kwargs.get("trust_remote_code")), kwargs.get("variant")
    if needed == PIPELINE:
        return PipelineFolder(
            location, given=kwargs, variant=variant, needs_weights=needs_weights, takes_code=takes_code
        )
    return ModelFolder(
        location,
        naming=DIFFUSERS,
        variant=variant,
        needs=needed,
        needs_weights=is_model and needs_weights,
        takes_code=takes_code,
    )


def _loaded(folder: _Folder | SingleFile, call: Callable[[], Any]) -> Any:
    """Call a function of diffusers while the weights of a folder are read from the URL."""
    with ExitStack() as stack:
        stack.callback(folder.stop)
        for part in _parts(folder):
            if any(name.startswith("model") for name in part.shards) and not isinstance(part, SingleFile):
                stack.enter_context(routed(part.path, dict.fromkeys(transformers.READERS, part.opened)))
            elif part.shards:
                stack.enter_context(routed(part.path, dict.fromkeys(_READERS, part.loaded)))
        stack.enter_context(library_call(folder.labels, loads_model=True))
        return call()


def _keep(folder: _Folder, loaded: Any, location: Location) -> None:
    first = loaded[0] if isinstance(loaded, tuple) and loaded else loaded
    is_pipeline = isinstance(folder, PipelineFolder)
    objects = [first, *(each for each in first.components.values() if each is not None)] if is_pipeline else [first]
    name_after(objects, folder.path, location)
    keep(folder, _parts(folder), objects)


def _parts(folder: _Folder | SingleFile) -> Iterable[ModelFolder | SingleFile]:
    return folder.components.values() if isinstance(folder, PipelineFolder) else [folder]


def _check_format(kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("use_safetensors") is False or kwargs.get("use_flashpack") or kwargs.get("use_onnx"):
        raise OptionError("only safetensors are read from a URL", hint="Download the folder for another format")
    how = kwargs.get("parallel_config")
    if hasattr(how, "tp_degree") or getattr(how, "tensor_parallel_config", None) is not None:
        raise OptionError(
            "tensor parallelism of diffusers reads slices of files on a disk",
            hint="Download the folder, or load the model and call enable_parallelism",
        )
