"""The public functions that save: tensors, or a module, to any storage that can be written."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamer._locate import opened_store
from streamer._save.report import SaveReport
from streamer._save.saving import Saving
from streamer.core.checkpoint.saved_tensors import SavedTensors
from streamer.core.checkpoint.sharding import most_shard_bytes
from streamer.core.errors import OptionError, UsageError
from streamer.core.format.shard_names import INDEX_SUFFIX
from streamer.core.in_thread import in_thread
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.quoting import quoted
from streamer.core.request.argument_types import OneUri, ProgressOption
from streamer.core.request.request import Request
from streamer.core.secrets.options import hidden
from streamer.core.secrets.redact import redact
from streamer.core.secrets.urls import hidden_uris
from streamer.core.tensors.shared_memory import names_to_drop
from streamer.core.tensors.tensor_bytes import is_torch_tensor

__all__ = ["asave", "save", "save_model"]

METADATA = {"format": "pt"}  # without it transformers refuses a file


def save(
    tensors: Any,
    uri: OneUri,
    *,
    max_shard_bytes: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    overwrite: bool = False,
    digests: bool = True,
) -> SaveReport:
    """Save tensors as a safetensors checkpoint, to any storage that can be written.

    The bytes go out in parts, straight from the memory of the tensors. A reader finds no checkpoint, the older one, or
    the whole new one; nothing is left of a save that fails.

    Args:
        tensors: A mapping of names to torch tensors or numpy arrays, or an ``nn.Module`` (its ``state_dict``). Also
            what `streamer.open` returns, or some of its tensors: each is read when its turn comes, and then freed.
        uri: A folder or prefix, or a file that ends in ``.safetensors``; any URL that can be written. A folder has
            ``model.safetensors``, or shards and their index, as transformers names them.
        max_shard_bytes: Most bytes of tensors in one file of a folder, as a number or with a unit (``"5GB"`` is
            5 * 10^9). A larger tensor has a file of its own.
        metadata: For the header of each file, in addition to ``{"format": "pt"}``, which transformers requires.
        storage_options: As for `streamer.load`, for one storage; the credentials must allow writing.
        options: ``memory_limit_bytes`` bounds the parts in flight; see `streamer.Options`.
        progress: As for `streamer.load`.
        overwrite: Replace a checkpoint that is there. It stays loadable until the new one is complete; files that the
            new one does not name are then removed.
        digests: Write a manifest with the CRC32C of each tensor, computed on the way, for loads with
            ``verify="manifest"``.

    Returns:
        What was written.

    Raises:
        UsageError: there is a checkpoint already, the storage cannot be written, or a tensor cannot be saved: it
            shares memory with another, is on the meta device, or the format lacks its dtype (`UnsupportedDtypeError`).
            No byte was written.
        ChangedError: another program wrote the same checkpoint meanwhile.
        StorageError: or a subclass: the storage refused or failed. What could not be removed is named in its hint.
        LoadCancelledError: raised by `progress`, and passed on.

    Example:
        >>> streamer.save(model, "s3://bucket/model").files                          # doctest: +SKIP
        ('model.safetensors.manifest.json', 'model.safetensors')
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    request = _request(uri, storage_options, options, progress)
    saving = _saving(request, _tensors_of(tensors), max_shard_bytes, metadata, overwrite=overwrite, digests=digests)
    return _saved(saving)


def save_model(
    model: Any,
    uri: OneUri,
    *,
    max_shard_bytes: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    overwrite: bool = False,
    digests: bool = True,
) -> SaveReport:
    """Save a module whose tensors may share memory, such as tied weights, as ``safetensors.torch.save_model`` does.

    Of tensors that share memory the first by name that covers all of it is written. The metadata names it for each of
    the others, so that ``safetensors.torch.load_model`` finds them.

    Args:
        model: An ``nn.Module``, or a mapping of names to torch tensors.
        uri: As for `save`, like the others.
        max_shard_bytes: As for `save`.
        metadata: As for `save`.
        storage_options: As for `save`.
        options: As for `save`.
        progress: As for `save`.
        overwrite: As for `save`.
        digests: As for `save`.

    Raises:
        UsageError: as for `save`; or none of the tensors that share memory covers all of it.
        StorageError: as for `save`.

    Example:
        >>> streamer.save_model(model, "s3://bucket/model")                         # doctest: +SKIP
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    request = _request(uri, storage_options, options, progress)
    tensors = _tensors_of(model)
    of_torch = {name: tensor for name, tensor in tensors.items() if is_torch_tensor(tensor)}
    dropped = names_to_drop({name: tensor for name, tensor in of_torch.items() if not tensor.is_meta})
    kept = {name: tensor for name, tensor in tensors.items() if name not in dropped}
    _check_metadata(metadata)
    more = {**dropped, **(metadata or {})}
    return _saved(_saving(request, kept, max_shard_bytes, more, overwrite=overwrite, digests=digests))


async def asave(
    tensors: Any,
    uri: OneUri,
    *,
    max_shard_bytes: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    overwrite: bool = False,
    digests: bool = True,
) -> SaveReport:
    """Save tensors, as `save` does, without blocking the event loop.

    If the task is cancelled, the save ends after the parts in flight, and removes what it wrote, before the task ends.
    Do not change the tensors meanwhile.

    Args:
        tensors: As for `save`, like the others.
        uri: As for `save`.
        max_shard_bytes: As for `save`.
        metadata: As for `save`.
        storage_options: As for `save`.
        options: As for `save`.
        progress: As for `save`; a callable runs in another thread.
        overwrite: As for `save`.
        digests: As for `save`.

    Raises:
        StreamerError: as for `save`.

    Example:
        >>> await streamer.asave(model, "s3://bucket/model")                        # doctest: +SKIP
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    request = _request(uri, storage_options, options, progress)
    saving = _saving(request, _tensors_of(tensors), max_shard_bytes, metadata, overwrite=overwrite, digests=digests)
    saved = asyncio.ensure_future(in_thread(lambda: _saved(saving), role="async"))
    try:
        return await asyncio.shield(saved)
    except asyncio.CancelledError:
        saving.is_cancelled.set()
        with suppress(Exception):
            await saved
        raise


def _saving(
    request: Request,
    tensors: Mapping[str, Any],
    max_shard_bytes: int | str,
    metadata: Mapping[str, str] | None,
    *,
    overwrite: bool,
    digests: bool,
) -> Saving:
    _check_metadata(metadata)
    return Saving(
        request=request,
        tensors=SavedTensors(tensors),
        metadata={**METADATA, **(metadata or {})},
        most_shard_bytes=most_shard_bytes(max_shard_bytes),
        overwrite=overwrite,
        has_digests=digests,
        settings=resolve(request.options),
    )


def _saved(saving: Saving) -> SaveReport:
    (uri,) = saving.request.uris
    options: Any = saving.request.storage_options
    with opened_store(uri, options, saving.request.fs, saving.settings) as store:
        return saving.run(store)


def _request(uri: Any, storage_options: Any, options: Options | None, progress: ProgressOption) -> Request:
    if isinstance(uri, list):  # of any iterable
        raise UsageError("a checkpoint is saved to one place: one folder or file")
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise OptionError(f"storage_options is a mapping of names to values, not {type(storage_options).__name__}")
    request = Request(uri=uri, storage_options=storage_options, options=options, progress=progress, verify="off")
    (uri,) = request.uris
    last = uri.rstrip("/").rpartition("/")[2]
    if last.endswith(INDEX_SUFFIX) or {*last} & {*"*["}:
        hint = "Name the folder, or a file that ends in .safetensors"
        raise UsageError(
            "a checkpoint is saved to a folder or a file, not to an index or a glob", uri=redact(uri), hint=hint
        )
    return request


def _tensors_of(tensors: Any) -> Mapping[str, Any]:
    if isinstance(tensors, Mapping):
        return tensors
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensors, torch.nn.Module):
        state: Mapping[str, Any] = tensors.state_dict()
        return state
    hint = "Give a module, or a mapping of names to tensors"
    raise UsageError(f"{type(tensors).__name__} cannot be saved", hint=hint)


def _check_metadata(metadata: Mapping[str, str] | None) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        raise UsageError(f"metadata is a mapping of texts, not {type(metadata).__name__}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            hint = "The format holds only texts: write numbers with str(), others with json.dumps()"
            raise UsageError(f"metadata {quoted(key)} is {type(value).__name__}, not a text", hint=hint)
