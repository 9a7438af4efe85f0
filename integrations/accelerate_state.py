"""``save_state`` and ``load_state`` of accelerate's ``Accelerator``, to and from any URL.

accelerate decides what belongs to a state: models, optimizers, schedulers, samplers, the scaler, random numbers, and
objects that were registered. The weights of models are sent from memory, all other files through a private folder.
Guarantees: a state shows up whole or not at all, with its first model last. Several processes are refused, because only
a shared file system would bring their files together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamer._pull.record import Wanted
from streamer._push.push import Target, push
from streamer._save.report import SaveReport
from streamer.core.errors import OptionError, UsageError
from streamer.core.folders.private_folders import private_folder
from streamer.core.options.options import Options
from streamer.core.secrets.hidden_arguments import hidden, hidden_uri
from streamer.integrations.folder_saves import refuse_arguments_of_save, saved_folder

__all__ = ["load_state", "save_state"]


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
    uri, storage_options = hidden_uri(uri), hidden(storage_options)
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
    uri, storage_options = hidden_uri(uri), hidden(storage_options)
    _check(accelerator)
    with private_folder() as folder:
        state = os.path.join(folder, "state")
        push(os.fspath(uri), Target(state), Wanted(storage_options=storage_options, options=options), progress=False)
        accelerator.load_state(state, **kwargs)


def _check(accelerator: Any) -> None:
    if accelerator.num_processes > 1:
        hint = "Save with streamer.dcp.StorageWriter, in which each process writes its part"
        raise UsageError(f"accelerate runs {accelerator.num_processes} processes", hint=hint)
    if accelerator.project_configuration.automatic_checkpoint_naming:
        hint = "Leave automatic_checkpoint_naming out, and name a folder for each state"
        raise OptionError("accelerate would choose the folder itself", hint=hint)
