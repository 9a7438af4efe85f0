"""Loads a checkpoint into tensors of the caller, or replaces a module's tensors on the meta device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamer._arguments import request_of
from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint, wanted_tensors
from streamer._load import WholeRead
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.parallel_plans import Placements
from streamer.core.checkpoint.report import LoadReport
from streamer.core.checkpoint.target_names import RenameOption, Renaming, pair_names
from streamer.core.checkpoint.targets import Targets, match_targets
from streamer.core.collector import collector_paused
from streamer.core.errors import TargetError, UsageError
from streamer.core.group.joining import joined_group
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import check_switch
from streamer.core.quoting import printable
from streamer.core.request.request import Request, UriOption
from streamer.core.tensors.devices import Placement
from streamer.core.tensors.frameworks import AUTO, DtypesByName, Framework
from streamer.core.tensors.named_targets import MetaModule, run_post_hooks, skipped_code, tensors_of
from streamer.core.tensors.sharded_tensors import device_type_of, is_sharded
from streamer.core.tensors.target_states import count_changes
from streamer.core.tensors.tensor_bytes import flat_bytes
from streamer.core.tensors.torch_modes import outside_captures

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions
    from streamer.core.verification.strategy import VerifyOption

TARGET = "target"  # a value of ``dtype=``

_log = OwnLogger()


def load_into(  # noqa: D417  `load` describes the others
    uri: UriOption,
    target: Any,
    *,
    strict: bool = True,
    prefix: str | None = None,
    rename: RenameOption = None,
    device: Any = None,
    names: NamesOption = None,
    slices: SlicesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    dtype: Any = None,
    verify: VerifyOption = None,
    key: KeyOption = None,
    context: str | None = None,
    group: Any = None,
) -> LoadReport:
    """Load a checkpoint into existing tensors, in place if they are contiguous, on the CPU or a CUDA device.

    All names, shapes and dtypes are checked before the first byte is read. If reading fails afterwards, the content of
    the targets is undefined and the error is raised. During the call, torch and numpy refuse to resize the memory of
    the targets.

    Args:
        uri: As for `load`, like the keyword arguments that are not described here.
        target: An ``nn.Module`` (parameters and buffers) or a mapping of name to tensor or array; each stays on its
            device. Loaded tensors replace parameters and buffers of a module on the meta device. For a DTensor (FSDP2,
            tensor parallelism), each process reads and fills the part that it holds.
        strict: Require a target for every chosen tensor of the checkpoint, and a tensor for every target; for tied
            targets, one tensor is enough. False fills the matching targets; the report lists the other names.
        prefix: A prefix that the names have only in the checkpoint: with ``"model."``, ``model.norm.weight`` fills the
            target's ``norm.weight``. Names without the prefix are left out.
        rename: A mapping of names of tensors or modules in the checkpoint, without the prefix, to names in the target
            (``{"layers": "blocks"}``; ``{"": "module"}`` puts a module before all others), or a function that returns
            the target's name. None instead of a name leaves the tensor out.
        device: The device of tensors that replace those on the meta device; None is ``"cpu"``.
        names: The names are those in the checkpoint.
        slices: A target has the shape of the part. The placements of a DTensor say which part is read.
        framework: ``"pt"`` or ``"np"``, the library of the targets.
        dtype: A target must have the dtype of its tensor after the cast. ``"target"`` casts each tensor to the dtype of
            its target. ``"auto"`` gives parameters and buffers on the meta device the dtypes of the checkpoint. Both
            apply only to the dtypes that `load` casts.

    Returns:
        The report. Its remarks name targets that stay on the meta device because the checkpoint lacks them, which are
        also logged as a warning, and the pre-hooks of ``load_state_dict``, which are not run. Its post-hooks are run.

    Raises:
        UsageError: `device` is given, and nothing is on the meta device.
        UnknownTensorError: the checkpoint has none of the names in `names`, `prefix` or `rename`.
        TargetError: a target is missing, has another shape or dtype, is not a plain tensor, shares a part of its memory
            with another or with itself, or got other memory during the load; or two targets have the same memory
            (tied), and the checkpoint holds different bytes for them; or two tensors get one name.
        StreamerError: as for `load`.

    Example:
        >>> with torch.device("meta"):                                          # doctest: +SKIP
        ...     model = Model()
        >>> streamer.load_into("s3://bucket/model", model, device="cuda:0")     # doctest: +SKIP
    """
    return _filled(request_of(locals()), target, prefix, rename, strict=strict)


def _filled(request: Request, target: Any, prefix: str | None, rename: RenameOption, *, strict: bool) -> LoadReport:
    """Load into a target; raises as `load_into` does."""
    with joined_group(request) as member:
        if isinstance(request.slices, Placements):
            hint = "Leave slices= out: DTensors as targets have placements of their own"
            raise UsageError("load_into takes no Placements", hint=hint)
        renaming, own = Renaming(prefix, rename), tensors_of(target)
        check_switch("strict", strict)
        meta = MetaModule(target)
        fresh = _replaceable(meta, own, request.device)
        library = _library(request, request.device)
        checkpoint = open_checkpoint(request, member=member, any_format=True)
        wanted = wanted_tensors(checkpoint, request)
        chosen = [each.entry.name for each in wanted]
        pairs = pair_names(chosen, list(checkpoint.catalog.tensors), own, renaming, strict=strict)
        tensors = {stored: own[name] for stored, name in pairs.targets.items()}
        new = {stored: fresh[name] for stored, name in pairs.targets.items() if name in fresh}
        if _is_by_name(request, new):
            places = _devices(request.device, pairs.targets, new)
            library = _library(request, places, {stored: each.dtype for stored, each in tensors.items()})
        loaded, report = _read(checkpoint, wanted, library, tensors, new, request=request)
    meta.assign({pairs.targets[stored]: tensor for stored, tensor in loaded.items()})
    run_post_hooks(target, pairs.missing, [str(renaming.name_of(name)) for name in pairs.unexpected])
    remarks = (*report.remarks, *_warned(meta.remarks(), report.uri), *skipped_code(target))
    return replace(report, remarks=remarks, missing=pairs.missing, unexpected=pairs.unexpected)


def _warned(remarks: list[str], label: str) -> list[str]:
    """Log the remarks on tensors that stay on the meta device: the module cannot be used yet."""
    for remark in remarks:
        _log.warning("%s: %s", printable(label), printable(remark))
    return remarks


def _replaceable(meta: MetaModule, own: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Return the targets on the meta device; if there are none, refuse ``device=``."""
    fresh = meta.replaceable(own)
    if device is not None and not fresh:
        raise UsageError("device= is for targets on the meta device, but all targets have memory", hint="Leave it out")
    return fresh


def _library(request: Request, device: Any, dtypes: Mapping[str, Any] | None = None) -> Framework:
    """Return the library of the targets; `dtypes`, by the names in the checkpoint, are for ``dtype="target"``."""
    cast_to = DtypesByName(dtypes or {}) if _is_word(request.dtype, TARGET) else None
    return framework_for(request, "cpu" if device is None else device, cast_to, fills_targets=True)


def _is_word(dtype: Any, word: str) -> bool:
    return isinstance(dtype, str) and dtype == word


def _is_by_name(request: Request, new: Mapping[str, Any]) -> bool:
    """Whether dtypes or devices differ between tensors; they are then known only after the names are paired."""
    device = request.device
    is_placed = isinstance(device, Mapping) or (device is None and any(map(is_sharded, new.values())))
    return _is_word(request.dtype, TARGET) or (bool(new) and is_placed)


def _devices(device: Any, targets: Mapping[str, str], new: Mapping[str, Any]) -> Any:
    """Return the devices of new tensors, by names in the checkpoint; the caller's mapping has names in the target."""
    if device is None:
        return {"": "cpu"} | {stored: device_type_of(each) for stored, each in new.items() if is_sharded(each)}
    if isinstance(device, Mapping) and new:
        placement = Placement(device)
        return {stored: placement.of(targets[stored]) for stored in new}
    return device


@outside_captures
def _read(
    checkpoint: OpenedCheckpoint,
    wanted: list[ShardTensor],
    library: Framework,
    tensors: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    request: Request,
) -> tuple[dict[str, Any], LoadReport]:
    """Read into `tensors`, by names in the checkpoint; return the tensors that replace those in `new`."""
    reading = [each for each in wanted if each.entry.name in tensors]
    takes_stored_dtypes = _is_word(request.dtype, AUTO)
    with collector_paused():
        reading, targets = match_targets(reading, tensors, library, fresh=new, takes_stored_dtypes=takes_stored_dtypes)
    try:
        with WholeRead(checkpoint, reading, library, targets=targets, progress=request.progress) as read:
            loaded = _fill(read, targets)
        targets.states.check_unchanged()
        _check_ties(loaded, targets)
    finally:
        targets.lock.release()
        count_changes(tensor for name, tensor in tensors.items() if name not in new)
    return {name: loaded[name] for name in targets.fresh}, read.report


def _fill(tensors: WholeRead, targets: Targets) -> dict[str, Any]:
    """Copy into targets that the engine does not fill; return new tensors, and tensors of tied targets."""
    loaded: dict[str, Any] = {}
    for name, tensor in tensors:
        if name in targets.copies:
            _copy(name, tensor, targets.copies[name])
        elif name in targets.tied or name in targets.fresh:
            loaded[name] = tensor
    return loaded


def _check_ties(loaded: Mapping[str, Any], targets: Targets) -> None:
    """Check that the checkpoint has equal bytes under all names of the same memory."""
    ties = [(first, name, memory) for name, (first, memory) in targets.tied.items()]
    ties += [(first, name, loaded[first]) for name, first in targets.fresh_ties.items()]
    for first, name, memory in ties:
        if not _are_equal(loaded[name], memory):
            raise TargetError(
                f"the targets {first[:80]!r} and {name[:80]!r} are the same memory, "
                "but the checkpoint's tensors differ",
                hint="Give each name a tensor of its own, or leave one of them out with names=",
            )


def _copy(name: str, source: Any, destination: Any) -> None:
    try:
        if hasattr(destination, "copy_"):
            destination.copy_(source)
        else:
            destination[...] = source
    except Exception as error:
        raise TargetError(f"the target {name[:80]!r} cannot be filled: {type(error).__name__}") from error


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two tensors have equal bytes; compared as numbers, NaN differs from itself, and 0.0 equals -0.0."""
    if not hasattr(one, "data_ptr"):
        return bool(one.tobytes() == other.tobytes())
    torch = sys.modules["torch"]  # imported: both are torch tensors
    return bool(torch.equal(flat_bytes(one.to(other.device)), flat_bytes(other)))
