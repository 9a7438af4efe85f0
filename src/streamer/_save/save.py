"""The public functions that save: tensors, or a module, to any storage that can be written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamer._arguments import fields_in
from streamer._lazy_checkpoint import Checkpoint
from streamer._locate_shards import opened_store
from streamer._save.arguments import SaveOptions, place_request
from streamer._save.saved_tensors import SavedTensors, most_shard_bytes
from streamer._save.saving import SaveReport, Saving
from streamer._versions import refuse_version
from streamer.backends.private_names.diffusers import LoraTensors
from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.sealed_files import refuse_reserved
from streamer.core.errors import UsageError
from streamer.core.group.joining import joined_group, reporting_to_group
from streamer.core.imported import if_imported
from streamer.core.options.settings import resolve
from streamer.core.request.request import OneUri
from streamer.core.secrets.redact import redact
from streamer.core.store.parallel import in_thread
from streamer.core.tensors.shared_memory import names_to_drop
from streamer.core.tensors.tensor_bytes import is_torch_tensor, layout_of

if TYPE_CHECKING:
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions

METADATA = {"format": "pt"}  # without it transformers refuses a file


def save(
    tensors: Any,
    uri: OneUri,
    *,
    max_shard_bytes: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    storage_options: StorageOptions = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    overwrite: bool = False,
    digests: bool = True,
    resume: bool = False,
    key: KeyOption = None,
    context: str | None = None,
    hide_names: bool = False,
    group: Any = None,
    slices: SlicesOption = None,
) -> SaveReport:
    """Save tensors as a safetensors checkpoint, to any storage that can be written.

    The bytes go out in parts, straight from the memory of the tensors. A reader finds no checkpoint, the older one, or
    the whole new one; nothing is left of a save that fails.

    Args:
        tensors: A mapping of names to torch tensors or numpy arrays, or an ``nn.Module`` (its ``state_dict``). The
            result of `streamer.open`, or some of its tensors, can be saved, too: each tensor is read when its turn
            comes, and then freed.
        uri: A folder or prefix, or a file that ends in ``.safetensors``; any URL that can be written. A folder has
            ``model.safetensors``, or shards and their index, as transformers names them.
        max_shard_bytes: Most bytes of tensors in one file of a folder, as a number or with a unit (``"5GB"`` is
            5 * 10^9). A larger tensor has a file of its own.
        metadata: For the header of each file, in addition to ``{"format": "pt"}``, which transformers requires, and to
            the metadata of the checkpoints that `streamer.open` has opened. Its values replace theirs.
        storage_options: As for `streamer.load`, for one storage; the credentials must allow writing.
        options: Its ``memory_limit_bytes`` bounds the parts in flight; see `streamer.Options`.
        progress: As for `streamer.load`.
        overwrite: Replace an existing checkpoint. It stays loadable until the new one is complete; files that the new
            one does not name are then removed.
        digests: Write a manifest with the CRC32C of each tensor, computed on the way, for loads with
            ``verify="manifest"``.
        resume: Keep each shard once it and the first missing one are whole, also if the save fails. The next call with
            the same tensors sends the others. Readers refuse a series with a gap.
        key: Encrypt the tensors. 32 bytes, the path of a file with them, ``"env:NAME"``, a function that returns them,
            or a `KeyProvider`. See docs/encryption.md.
        context: A name to which the encrypted checkpoint is bound, such as ``"llama-prod-7"``. A load must pass the
            same name. It stays readable.
        hide_names: Encrypt names, dtypes, shapes and metadata, too.
        group: A process group of torch, all of whose ranks call this with what each holds: DTensors, and tensors that
            are equal on all ranks that have them. Each sends a part of the files. See docs/groups.md.
        slices: With ``group=``, which part of a plain tensor this rank has, as for `streamer.load`: a mapping of
            patterns to `Slice`, a function, a `TensorParallel`, or `Placements`. The whole tensors are saved.

    Returns:
        What was written.

    Raises:
        UsageError: there is a checkpoint already, the storage cannot be written, or a tensor cannot be saved: it
            shares memory with another, is on the meta device, or the format lacks its dtype (`UnsupportedDtypeError`);
            or the metadata of opened checkpoints, or of their shards, differ; or what the ranks of a group pass does
            not fit together.
            No byte was written. `EncryptionKeyError`: the key cannot be read.
        ChangedError: another program wrote the same checkpoint meanwhile.
        StorageError: or a subclass: the storage refused or failed. Its hint names files that could not be removed.
        GroupError: another rank of the group failed or died.
        LoadCancelledError: raised by `progress`, and passed on.

    Example:
        >>> streamer.save(model, "s3://bucket/model").files                          # doctest: +SKIP
        ('model.safetensors.manifest.json', 'model.safetensors')
    """
    return saved(saving_of(tensors, uri, locals()))


def save_model(  # noqa: D417  `save` describes the others
    model: Any,
    uri: OneUri,
    *,
    max_shard_bytes: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    storage_options: StorageOptions = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    overwrite: bool = False,
    digests: bool = True,
    resume: bool = False,
    key: KeyOption = None,
    context: str | None = None,
    hide_names: bool = False,
    group: Any = None,
    slices: SlicesOption = None,
) -> SaveReport:
    """Save a module whose tensors may share memory, such as tied weights, as ``safetensors.torch.save_model`` does.

    If several tensors share memory, one of them is written: the first by name that covers all their bytes. For each
    of the others, the metadata names the written tensor. `load_into` fills a module of the same kind from this file,
    and so does ``safetensors.torch.load_model`` if it accepts such modules.

    Args:
        model: An ``nn.Module``, or a mapping of names to torch tensors.
        uri: As for `save`, like the keyword arguments.

    Raises:
        UsageError: as for `save`; or none of the tensors that share memory covers all of it; or a tensor that has its
            memory for itself shows an element of it several times (``expand``), so that it could not be filled again.
        StorageError: as for `save`.

    Example:
        >>> streamer.save_model(model, "s3://bucket/model")                         # doctest: +SKIP
    """
    return saved(saving_of(model, uri, locals(), drops_shared=True))


async def asave(  # noqa: D417  `save` describes the others
    tensors: Any,
    uri: OneUri,
    *,
    max_shard_bytes: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    storage_options: StorageOptions = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    overwrite: bool = False,
    digests: bool = True,
    resume: bool = False,
    key: KeyOption = None,
    context: str | None = None,
    hide_names: bool = False,
    group: Any = None,
    slices: SlicesOption = None,
) -> SaveReport:
    """Save tensors, as `save` does, without blocking the event loop.

    If the task is cancelled, the save ends after the parts in flight, and removes the files that it wrote, before the
    task ends. Do not change the tensors meanwhile.

    Args:
        tensors: As for `save`.
        uri: As for `save`, like the keyword arguments.
        progress: A callable runs in another thread.

    Raises:
        StreamerError: as for `save`.

    Example:
        >>> await streamer.asave(model, "s3://bucket/model")                        # doctest: +SKIP
    """
    saving = saving_of(tensors, uri, locals(), is_sampled=True)
    saving_task = asyncio.ensure_future(in_thread(lambda: saved(saving), role="async"))
    try:
        return await asyncio.shield(saving_task)
    except asyncio.CancelledError:
        saving.is_cancelled.set()
        with suppress(Exception):
            await saving_task
        raise


def saving_of(
    tensors: Any, uri: Any, arguments: Mapping[str, Any], *, drops_shared: bool = False, is_sampled: bool = False
) -> Saving:
    """Check the arguments of a public function."""
    with reporting_to_group(arguments["group"]):
        how = SaveOptions(**fields_in(arguments, SaveOptions))
        named, parts = _tensors_of(tensors), None
        notes = _notes_of(named)
        if how.group is not None:
            from streamer._save.rank_parts import own_parts, sliced_parts  # noqa: PLC0415 (seldom needed)

            named, parts = own_parts(named)
        dropped = _dropped(named) if drops_shared else {}
        kept = {name: tensor for name, tensor in named.items() if name not in dropped} if dropped else named
        request, more = place_request(uri, how), {**notes, **dropped, **(how.metadata or {})}
        saved = SavedTensors(kept, replaced=more, is_sampled=is_sampled or how.group is not None)
        if parts is not None:
            plain = [each for each in saved.layouts if parts[each.name] is None]
            parts |= sliced_parts(request.slices, plain)
        metadata = {**METADATA, **saved.metadata, **more}
        refuse_reserved([each.name for each in saved.layouts], metadata)
        return Saving(
            request=request,
            tensors=saved,
            metadata=metadata,
            most_shard_bytes=most_shard_bytes(how.max_shard_bytes),
            overwrite=how.overwrite,
            has_digests=how.digests,
            resume=how.resume,
            settings=resolve(request.options),
            key=None if how.key is None else KeySource(how.key),
            hides_names=how.hide_names,
            parts=parts,
            dropped=dropped,
        )


def _dropped(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Choose tensors to leave out because another one holds their memory; return dropped name to kept name."""
    of_torch = {name: tensor for name, tensor in tensors.items() if is_torch_tensor(tensor)}
    for name, tensor in of_torch.items():
        layout_of(name, tensor)
    return names_to_drop({name: tensor for name, tensor in of_torch.items() if not tensor.is_meta})


def _notes_of(tensors: Any) -> Mapping[str, str]:
    """Return the metadata that a mapping keeps itself: a loaded LoRA adapter, or a checkpoint without tensors."""
    if isinstance(tensors, LoraTensors):
        return tensors.metadata
    return tensors.metadata() if isinstance(tensors, Checkpoint) and not tensors else {}


def saved(saving: Saving) -> SaveReport:
    """Save, and return the report; raises as `save`."""
    (uri,) = saving.request.uris
    with saving.settings.watched("save", redact(uri)), joined_group(saving.request, "a save") as member:
        if saving.parts is not None:
            from streamer._save.rank_saves import together  # noqa: PLC0415 (seldom needed)

            saving = together(saving, member)
        options: Any = saving.request.storage_options
        refuse_version(uri, options, saving.settings)
        with opened_store(uri, options, saving.request.fs, saving.settings) as store:
            return saving.run(store)


def _tensors_of(tensors: Any) -> Mapping[str, Any]:
    if isinstance(tensors, Mapping):
        return tensors
    torch = if_imported("torch")
    if torch is not None and isinstance(tensors, torch.nn.Module):
        state: Mapping[str, Any] = tensors.state_dict()
        return state
    hint = "Pass a module, or a mapping of names to tensors"
    raise UsageError(f"{type(tensors).__name__} cannot be saved", hint=hint)
