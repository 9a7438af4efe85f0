"""Loads whole checkpoints into a dict, and reads objects with a wrong digest a second time.

The digest of an object can be compared only after its last tensor. By then, a stream has handed out the other tensors;
here, the second read hands them out again. If the digest mismatches again, an error is raised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from streamer._arguments import request_of
from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint, wanted_tensors
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.destinations import KeptMemory
from streamer.core.checkpoint.report import LoadReport, joined_reports
from streamer.core.format.header_entries import LORA_METADATA
from streamer.core.group.joining import joined_group
from streamer.core.options.options import Options
from streamer.core.request.request import ProgressOption, Request, UriOption
from streamer.core.tensors.frameworks import Framework

if TYPE_CHECKING:
    import torch
    from fsspec import AbstractFileSystem
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from streamer._arguments import LoadArguments
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.checkpoint.targets import Targets
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions
    from streamer.core.tensors.frameworks import NumpyName, TorchName
    from streamer.core.verification.strategy import VerifyOption


class WholeRead:
    """An iterator of ``(name, tensor)`` and a context manager; if a name comes twice, the last tensor counts."""

    def __init__(
        self,
        checkpoint: OpenedCheckpoint,
        wanted: list[ShardTensor],
        framework: Framework,
        *,
        targets: Targets | None = None,
        progress: ProgressOption = None,
    ) -> None:
        self._checkpoint, self._wanted, self._framework, self._targets = checkpoint, wanted, framework, targets
        self._kept = KeptMemory(wanted, framework, targets)
        if checkpoint.settings.check_memory is not False:
            self._kept.check_fit(checkpoint.label)
        self._first_stream: Stream | None = None
        self._wrong_shards = set[int]()
        try:
            verification = checkpoint.verification(wanted)
            if verification is not None:
                from streamer.core.verification.strategy import Watched  # noqa: PLC0415 (as needed)

                wrong = self._wrong_shards  # a function that refers to this object would keep it open
                verification = Watched(verification, wanted, lambda shard, _: wrong.add(shard))
            self._stream = Stream(checkpoint, wanted, framework, verification, targets=targets, progress=progress)
        except BaseException:
            self._kept.end()
            raise
        self._kept.unread_share = self._stream.unread_share

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in file order."""
        return [each.entry.name for each in self._wanted]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the checkpoint."""
        return self._checkpoint.catalog.metadata

    @property
    def report(self) -> LoadReport:
        """The report so far, of both reads together."""
        last = self._stream.report
        return joined_reports(self._first_stream.report, last, self._wrong_shards) if self._first_stream else last

    def close(self) -> None:
        """Stop reading and join every thread."""
        self._stream.close()
        self._kept.end()

    def __iter__(self) -> WholeRead:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            return next(self._stream)
        except StopIteration:
            if not self._begin_again():
                raise
        return next(self._stream)

    def next_batch(self) -> list[tuple[str, Any]]:
        """Return the next tensors, as `Stream.next_batch`."""
        batch = self._stream.next_batch()
        return self._stream.next_batch() if not batch and self._begin_again() else batch

    def __enter__(self) -> WholeRead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _begin_again(self) -> bool:
        """Start the second read if the first read is complete and found mismatches; return whether it was started."""
        if self._first_stream is not None or not self._wrong_shards:
            return False
        again = [each for each in self._wanted if each.shard in self._wrong_shards]
        verification = self._checkpoint.verification(again)
        self._first_stream = self._stream
        self._stream = Stream(
            self._checkpoint, again, self._framework, verification, targets=self._targets, progress=False
        )
        return True


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
) -> dict[str, Any]:
    """Load a safetensors checkpoint.

    Args:
        uri: A ``.safetensors`` file, a folder or prefix (its ``model.safetensors.index.json`` lists the shards;
            without one, all its ``*.safetensors`` are loaded), an index file, a glob of the last path segment, or
            a list of these. Any fsspec URL, plain path or ``os.PathLike``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a ``torch.device``, …; or a mapping of tensor or module names to
            these (``{"model.layers.0": 0, "": "cpu"}``, like accelerate's ``device_map``; ``""`` is for all others).
        names: None for all tensors, or a name, an ``fnmatch`` pattern, a list of these, or a callable
            ``name -> bool``. Only the bytes of the chosen tensors are read.
        slices: None for whole tensors, or the part that a rank keeps of each tensor: a mapping of names or ``fnmatch``
            patterns to a `Slice`, or to None for whole tensors; a callable ``(name, shape, dtype) -> Slice | None``
            with the checkpoint's shape and dtype (``"BF16"``); a `TensorParallel`; or `Placements`, which give
            DTensors. The first pattern that matches a name counts; tensors without a match are whole. For rows
            (dimension 0), only their bytes are read, and so are long runs of bytes that lie far apart. For any other
            part, the range of bytes that holds it is read once, and only the part is kept.
        framework: ``"pt"`` (torch), ``"np"`` (numpy, CPU only) or ``"jax"`` (its devices and shardings, too).
        storage_options: Passed to fsspec unchanged (``{"key": …, "secret": …, "endpoint_url": …}``). For URIs on
            several storages, options under the name of a scheme (``{"s3": {…}, "gs": {…}}``) apply only to its URLs,
            and a list has one entry for each URI.
        fs: An fsspec file system to read from; `uri` is then a path or URL of it.
        options: How to read; see `streamer.Options`.
        progress: None shows a bar on a terminal or in a notebook if the load takes longer than half a second, and
            elsewhere logs a line every ten seconds (level INFO). True always shows a bar, False never. A callable
            receives ``(bytes done, bytes in all)``; it may raise `LoadCancelledError` to end the load, and its other
            exceptions are logged. ``STREAMER_PROGRESS=0`` turns the automatic bar and log lines off.
        dtype: A ``torch.dtype`` or its name. Tensors of F64, F32, F16 and BF16 are cast to it on their device; other
            dtypes are never cast. None casts nothing, and so does ``"auto"``.
        verify: Compare the bytes with digests: ``"auto"`` uses the digest that the storage keeps of each object, if
            any; ``"manifest"`` uses the manifest that `streamer.write_manifest` wrote; ``"off"`` compares nothing.
            None uses ``STREAMER_VERIFY``, or ``"off"``. `LoadReport.verified` says what was compared.
        key: The key of an encrypted checkpoint: 32 bytes, the path of a file with them, ``"env:NAME"`` for an
            environment variable, a function that returns them, or a `KeyProvider`. With a key, a file that is not
            encrypted is refused. See docs/encryption.md.
        context: The name to which `streamer.save` bound the encrypted checkpoint; another checkpoint of the same key is
            refused.
        group: A ``torch.distributed.ProcessGroup``, all of whose ranks make this call: each byte is read by one of
            them, and sent to the others that want it. Their `slices` may differ. With None, this process reads alone.

    Returns:
        Name to tensor, in file order. Every tensor owns its memory. `streamer.open` also returns the metadata of the
        files: ``checkpoint.get_tensors()`` is this mapping, and ``checkpoint.metadata()`` what is noted beside it.

    Raises:
        UsageError: or a subclass: unknown scheme, device, tensor name, dtype or option; a Slice that does not fit.
        FormatError: or a subclass: malformed header or index; `TamperedError`, if an encrypted checkpoint is not as it
            was saved.
        StorageError: or a subclass: missing, denied, changed, truncated, unreachable, timed out; with `verify`,
            `ChecksumError`.
        DeviceError: the device is out of memory or lost, or its driver reported an error.
        PluginError: a plug-in is broken.
        GroupError: another rank of the group failed, left or is silent.

    Example:
        >>> tensors = streamer.load("s3://bucket/model", names="model.layers.0.*")     # doctest: +SKIP
    """
    return collected(whole_read(request_of(locals())))


def whole_read(request: Request) -> WholeRead:
    """Start the read of a load; raises as `load` does."""
    with joined_group(request) as member:
        library = framework_for(request)
        checkpoint = open_checkpoint(request, member=member, any_format=True)
        return WholeRead(checkpoint, wanted_tensors(checkpoint, request), library, progress=request.progress)


def collected(read: WholeRead) -> dict[str, Any]:
    """Read to the end; return a mapping of name to tensor, in file order."""
    with read as tensors:
        loaded: dict[str, Any] = dict.fromkeys(tensors.names)  # sets the order; every value is then replaced
        while batch := tensors.next_batch():
            loaded.update(batch)
    if LORA_METADATA not in read.metadata:
        return loaded
    from streamer.backends.private_names.diffusers import with_metadata  # noqa: PLC0415 (few loads are adapters)

    return with_metadata(loaded, read.metadata)


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
    return load(filename, device=device, storage_options=storage_options, options=options, progress=False)
