"""Loads whole checkpoints: into a dict, or into tensors that the caller already has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from streamer._locate import StorageOptions, UriOption, folders_of
from streamer._opened_checkpoint import open_checkpoint, wanted_tensors
from streamer._progress import ProgressOption
from streamer._whole_read import WholeRead
from streamer.core.checkpoint.report import LoadReport
from streamer.core.checkpoint.selection import NamesOption, checked_names
from streamer.core.checkpoint.strategies import VerifyOption
from streamer.core.checkpoint.targets import Targets, match_targets, tensors_of
from streamer.core.errors import TargetError, UsageError
from streamer.core.options.arguments import check_progress, check_switch
from streamer.core.options.options import Options
from streamer.core.secrets.options import hidden
from streamer.core.secrets.urls import hidden_uris
from streamer.core.tensors.frameworks import framework_of
from streamer.core.tensors.meta_module import MetaModule

if TYPE_CHECKING:
    import torch
    from fsspec import AbstractFileSystem
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from streamer._arguments import LoadArguments
    from streamer.core.tensors.tensor_types import NumpyName, TorchName

__all__ = ["collected", "load", "load_file", "load_into", "whole_read"]


@overload
def load(uri: UriOption, *, framework: TorchName = ..., **how: Unpack[LoadArguments]) -> dict[str, torch.Tensor]: ...
@overload
def load(uri: UriOption, *, framework: NumpyName, **how: Unpack[LoadArguments]) -> dict[str, NDArray[Any]]: ...
@overload
def load(uri: UriOption, *, framework: str, **how: Unpack[LoadArguments]) -> dict[str, Any]: ...
def load(
    uri: UriOption,
    *,
    device: Any = "cpu",
    names: NamesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    dtype: Any = None,
    verify: VerifyOption = None,
) -> dict[str, Any]:
    """Load a safetensors checkpoint.

    Args:
        uri: A ``.safetensors`` file, a folder or prefix (its ``model.safetensors.index.json`` decides, else all
            its ``*.safetensors``), an index file, a glob of the last path segment, or a list of these. Any
            fsspec URL, plain path or ``os.PathLike``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a ``torch.device``, …; or a mapping of tensor or module names to
            these (``{"model.layers.0": 0, "": "cpu"}``, as accelerate's ``device_map``; ``""``: all others).
        names: None for all tensors, or a name, an ``fnmatch`` pattern, a list of these, or a callable
            ``name -> bool``. Only the bytes of the chosen tensors are read.
        framework: ``"pt"`` (torch) or ``"np"`` (numpy, CPU only).
        storage_options: Passed to fsspec unchanged (``{"key": …, "secret": …, "endpoint_url": …}``). For URIs on
            several storages, options under the name of a scheme (``{"s3": {…}, "gs": {…}}``) go to its URLs alone,
            and a list gives each URI of a list its own.
        fs: An fsspec file system to read from; `uri` is then a path or URL of it.
        options: How to read; see `streamer.Options`.
        progress: None shows a bar on a terminal or in a notebook when the load takes longer than half a second, and
            elsewhere logs a line every ten seconds (level INFO); True and False always and never show a bar; a callable
            gets ``(bytes done, bytes in all)``, and may raise `LoadCancelledError` to end the load: whatever else it
            raises is logged. ``STREAMER_PROGRESS=0`` turns the automatic ones off.
        dtype: A ``torch.dtype`` or its name, to which tensors of F64, F32, F16 and BF16 are cast on their device. None
            leaves them as they are stored; all other dtypes always stay.
        verify: Compare the bytes with digests: ``"auto"`` with what the storage keeps of each object, where it
            keeps something; ``"manifest"`` with the manifest that `streamer.write_manifest` wrote; ``"off"`` with
            nothing. None takes ``STREAMER_VERIFY``, or ``"off"``. `LoadReport.verified` tells what was compared.

    Returns:
        Name to tensor, in file order. Every tensor owns its memory.

    Raises:
        UsageError: and its kinds: unknown scheme, device, tensor name, dtype or option.
        FormatError: and its kinds: malformed header or index.
        StorageError: and its kinds: missing, denied, changed, truncated, unreachable, timed out; with `verify`,
            `ChecksumError`.
        DeviceError: the device is out of memory, lost, or its driver refused.
        PluginError: a plug-in is broken.

    Example:
        >>> tensors = streamer.load("s3://bucket/model", names="model.layers.0.*")     # doctest: +SKIP
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    return collected(
        whole_read(
            uri,
            device=device,
            names=names,
            framework=framework,
            storage_options=storage_options,
            fs=fs,
            options=options,
            progress=progress,
            dtype=dtype,
            verify=verify,
        )
    )


def whole_read(
    uri: UriOption,
    *,
    device: Any = "cpu",
    names: NamesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    dtype: Any = None,
    verify: VerifyOption = None,
) -> WholeRead:
    """Begin what `load` does; arguments and errors are those of `load`."""
    names = checked_names(names)
    check_progress(progress)
    library = framework_of(framework, device, dtype, folders_of(uri))
    checkpoint = open_checkpoint(uri, storage_options, options, fs, verify)
    return WholeRead(checkpoint, wanted_tensors(checkpoint, names), library, progress=progress)


def collected(read: WholeRead) -> dict[str, Any]:
    """Read to the end; give name to tensor, in file order."""
    with read as tensors:
        loaded: dict[str, Any] = dict.fromkeys(tensors.names)  # fixes the order; every value is replaced, or it raises
        loaded.update(tensors)
    return loaded


def load_into(
    uri: UriOption,
    target: Any,
    *,
    strict: bool = True,
    device: Any = None,
    names: NamesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    dtype: Any = None,
    verify: VerifyOption = None,
) -> LoadReport:
    """Load a checkpoint into tensors that exist, in place where they are contiguous, on the CPU or a CUDA device.

    All names, shapes and dtypes are checked before the first byte is read. If reading fails afterwards, the
    content of the targets is undefined and the error is raised. Until it returns, the memory of the targets cannot be
    resized: torch and numpy refuse it.

    Args:
        uri: As for `load`.
        target: An ``nn.Module`` (parameters and buffers) or a mapping of name to tensor or array; each stays
            on its device. Parameters and buffers of a module on the meta device are replaced by loaded ones.
        strict: Every tensor of the checkpoint has a target and every target a tensor; of tied tensors one is
            enough. False fills what matches.
        device: Where tensors that replace those on the meta device are made, as for `load`; None: ``"cpu"``.
        names: As for `load`.
        framework: ``"pt"`` or ``"np"``, the library of the targets.
        storage_options: As for `load`.
        fs: As for `load`.
        options: As for `load`.
        progress: As for `load`.
        dtype: As for `load`: a target must have the dtype its tensor has after the cast.
        verify: As for `load`.

    Returns:
        What was done; a remark names what stays on the meta device, because the checkpoint does not hold it.

    Raises:
        UsageError: `device` is given, and nothing is on the meta device.
        TargetError: a target is missing, has another shape or dtype, is no plain tensor, shares a part of its memory
            with another or with itself, or got other memory while it was filled; or two targets are the same memory
            (tied), and the checkpoint holds different bytes for them.
        StreamerError: as for `load`.
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    names, own = checked_names(names), tensors_of(target)
    check_progress(progress)
    check_switch("strict", strict)
    meta = MetaModule(target)
    fresh = meta.replaceable(own)
    if device is not None and not fresh:
        raise UsageError("device= is for targets on the meta device, and these have memory", hint="Leave it out")
    library = framework_of(framework, "cpu" if device is None else device, dtype, folders_of(uri))
    checkpoint = open_checkpoint(uri, storage_options, options, fs, verify)
    wanted, targets = match_targets(wanted_tensors(checkpoint, names), own, library, strict=strict, fresh=fresh)
    try:
        with WholeRead(checkpoint, wanted, library, targets=targets, progress=progress) as tensors:
            loaded = _fill(tensors, targets)
        targets.states.check_unchanged()
        _check_ties(loaded, targets)
        meta.assign({name: loaded[name] for name in targets.fresh})
    finally:
        targets.lock.release()
    report = tensors.report
    return replace(report, remarks=(*report.remarks, *meta.remarks()))


def load_file(
    filename: str | os.PathLike[str],
    device: Any = "cpu",
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> dict[str, torch.Tensor]:
    """Load one file as ``safetensors.torch.load_file`` does, from any URL.

    Raises:
        StreamerError: as for `load`.
    """
    filename, storage_options = hidden_uris(filename), hidden(storage_options)
    return load(filename, device=device, storage_options=storage_options, options=options, progress=False)


def _fill(tensors: WholeRead, targets: Targets) -> dict[str, Any]:
    """Fill the targets that the engine does not fill; return new tensors, and those tied to another target."""
    loaded: dict[str, Any] = {}
    for name, tensor in tensors:
        if name in targets.copies:
            _copy(name, tensor, targets.copies[name])
        elif name in targets.tied or name in targets.fresh:
            loaded[name] = tensor
    return loaded


def _check_ties(loaded: Mapping[str, Any], targets: Targets) -> None:
    """Check that the checkpoint has equal bytes under two names of the same memory."""
    ties = [(first, name, memory) for name, (first, memory) in targets.tied.items()]
    ties += [(first, name, loaded[first]) for name, first in targets.fresh_ties.items()]
    for first, name, memory in ties:
        if not _are_equal(loaded[name], memory):
            raise TargetError(
                f"the targets {first[:80]!r} and {name[:80]!r} are the same memory, the checkpoint's tensors differ",
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
    """Whether their bytes are equal; as numbers, NaN is not equal to itself, and 0.0 is to -0.0."""
    if not hasattr(one, "data_ptr"):
        return bool(one.tobytes() == other.tobytes())
    flat = [each.to(other.device).contiguous().reshape(-1) for each in (one, other)]
    torch = sys.modules["torch"]  # imported, as both are its tensors
    return bool(torch.equal(*(each.view(torch.uint8) for each in flat)))
