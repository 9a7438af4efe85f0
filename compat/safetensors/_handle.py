"""``safe_open`` with safetensors' signature, methods and messages, for any URL.

Callers match these messages (safetensors' own tests among them).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from safetensors import safe_open as their_safe_open  # its own name here: `streamer.patch` replaces that of safetensors

from streamer._checkpoint_headers import framework_for
from streamer._lazy_checkpoint import Checkpoint
from streamer._stream import Stream
from streamer.compat.safetensors._errors import both, raised_as_safetensors
from streamer.compat.safetensors._prefetch import PrefetchLoader, planned
from streamer.core.checkpoint.lazy_tensor import TensorSlice
from streamer.core.errors import ObjectNotFoundError, OptionError, UnknownTensorError, UsageError
from streamer.core.options.options import Options
from streamer.core.path_objects import text_of
from streamer.core.request.request import Request
from streamer.core.store.names import scheme_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EngineHandle", "HandleSlice", "TensorMeta", "check_numpy_index", "safe_open", "safe_open_handle"]

BACKENDS = ("mmap", "pread")


def check_numpy_index(key: Any, shape: Sequence[int]) -> None:
    """Check an index as safetensors 0.8 does for ``framework="np"``.

    Raises:
        SafetensorError: the index has a non-empty list, or exceeds the shape.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, list) and part for part in parts):
        raise SafetensorError("Non empty lists are not implemented")
    if any(part is Ellipsis or isinstance(part, list) or part is None for part in parts):
        return
    for dimension, (part, size) in enumerate(zip(parts, shape, strict=False)):
        if isinstance(part, Integral) and part < -size:
            raise SafetensorError(f"Invalid index {part} for dimension {dimension} of size {size}")
        last = _last(part)
        if last is not None and last >= size:
            raise SafetensorError(
                f"Error during slicing [{', '.join(map(_text, parts))}] with shape {list(shape)}: index {last} out of"
                f" bounds for tensor dimension #{dimension} of size {size}"
            )


def _last(part: Any) -> int | None:
    """Return the highest index that a part names, or None."""
    if isinstance(part, slice):
        return None if part.stop is None or part.stop <= 0 else int(part.stop) - 1
    return int(part) if isinstance(part, Integral) else None


def _text(part: Any) -> str:
    if not isinstance(part, slice):
        return str(part)
    begin, end = ("" if each is None else str(each) for each in (part.start, part.stop))
    return f"{begin}:{end}"


class safe_open:  # noqa: N801  safetensors' name
    """Open a file as ``safetensors.safe_open`` does; it may be any URL, and may be sharded.

    Args:
        filename: A path, or any URL of `streamer.load`.
        framework: A name of safetensors; URLs can be read for ``"pt"`` and ``"np"``.
        device: As for `streamer.load`.
        backend: How safetensors reads a local file: ``"mmap"`` or ``"pread"``.
        storage_options: Passed to fsspec unchanged.
        options: How the engine reads; see `streamer.Options`.

    Returns:
        Safetensors' own handle for a local file whose tensors stay on the CPU; else a handle with the same methods.

    Raises:
        SafetensorError: also an instance of `streamer.StreamerError`, as for `streamer.load`.
        FileNotFoundError: there is no such file.
    """

    def __new__(
        cls,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        storage_options: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> Any:
        """Open the file with safetensors, or with the engine."""
        if _is_for_safetensors(filename, device, storage_options, options):
            how = {} if backend == BACKENDS[0] else {"backend": backend}  # an argument since safetensors 0.8
            try:
                return their_safe_open(filename, framework, device, **how)
            except OSError as error:
                if type(error) is not OSError:  # a subclass: there is no such file, or it may not be read
                    raise  # plain OSError: the file system cannot map files, and the engine needs no maps
        given = {"framework": framework, "device": device, "storage_options": storage_options, "options": options}
        return EngineHandle(filename, backend=backend, **given)


def safe_open_handle(file: Any, framework: str, device: Any = "cpu") -> Any:
    """Open the file of an open file object, which is local or of an fsspec file system.

    Args:
        file: A file object with a ``name``, or one of fsspec with a ``path`` and an ``fs``.
        framework: As for `safe_open`.
        device: As for `safe_open`.
    """
    fs = getattr(file, "fs", None)
    if fs is None or "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
        return safe_open(file.name, framework, device)
    return EngineHandle(file.path, framework=framework, device=device, fs=fs)


class TensorMeta(NamedTuple):
    """A tensor's entry in its header: the dtype in safetensors, the shape, and its bytes in the data of the file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class EngineHandle(Checkpoint[Any]):
    """The handle of a checkpoint that the engine reads.

    Args:
        filename: As for `safe_open`, like `backend`.
        how: Fields of a `Request`.
    """

    def __init__(self, filename: str | os.PathLike[str], *, backend: str = "mmap", **how: Any) -> None:
        if backend not in BACKENDS:
            raise both(OptionError)(f"backend {backend!r} is invalid, it is one of {', '.join(map(repr, BACKENDS))}")
        with raised_as_safetensors():
            request = Request(uri=filename, **how, progress=False)
            try:
                super().__init__(request)
            except ObjectNotFoundError as error:
                (name,) = request.uris
                if scheme_of(name) != "file" or request.fs is not None or os.path.lexists(name):
                    raise  # the file exists; a shard that its index names is missing
                raise both(ObjectNotFoundError)(f"No such file or directory: {name}") from error

    def keys(self) -> list[str]:  # type: ignore[override]  # a list, as in safetensors
        """Names of the tensors, sorted."""
        self._check_open()
        return super().keys()

    def offset_keys(self) -> list[str]:
        """Names of the tensors in the order of their bytes in the file."""
        self._check_open()
        return super().offset_keys()

    def metadata(self) -> dict[str, str] | None:  # type: ignore[override]  # safetensors returns None for no metadata
        """The ``__metadata__`` of the file, or None if there is none."""
        self._check_open()
        return super().metadata() or None

    def get_tensors(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Read tensors in parallel, as `Checkpoint.get_tensors`."""
        with raised_as_safetensors():
            return super().get_tensors(*arguments, **named)

    def get_tensor(self, name: str, **named: Any) -> Any:
        """Read one tensor."""
        self._check_holds(name)
        with raised_as_safetensors():
            return super().get_tensor(name, **named)

    def get_slice(self, name: str, **named: Any) -> TensorSlice[Any]:
        """Return a tensor that is read when it is indexed."""
        self._check_holds(name)
        part = super().get_slice(name, **named)
        return HandleSlice(part, is_numpy=self._request.framework in ("np", "numpy"))

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Return a tensor's entry in the header, as safetensors 0.9 does."""
        self._check_holds(name)
        shard, entry = self._shard_tensors[name].shard, self._shard_tensors[name].entry
        tensors = self._checkpoint.catalog.tensors.values()
        begin = min(each.entry.begin for each in tensors if each.shard == shard)  # tensors fill the whole file
        return TensorMeta(entry.dtype, list(entry.shape), (entry.begin - begin, entry.end - begin))

    def prefetch(
        self,
        plan: Mapping[str, slice | None] | None = None,
        *,
        device: Any = None,
        threads: int = 8,  # noqa: ARG002  safetensors has it
    ) -> PrefetchLoader:
        """Start to read tensors in the background, to any device.

        Args:
            plan: Maps names to the wanted rows, or to None for all rows; None in place of a plan means all tensors.
            device: The device of the tensors; None for the device of this handle.
            threads: Ignored: the engine chooses.
        """
        self._check_open()
        library = framework_for(self._request, device)
        wanted = planned(plan, self._shard_tensors)
        verification = self._checkpoint.verification(wanted)
        return PrefetchLoader(partial(Stream, self._checkpoint, wanted, library, verification, progress=False))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def _check_open(self) -> None:
        if self._is_closed:
            raise both(UsageError)("File is closed")

    def _check_holds(self, name: str) -> None:
        self._check_open()
        if name not in self._shard_tensors:
            raise both(UnknownTensorError)(f"File does not contain tensor {name}")


class HandleSlice(TensorSlice[Any]):
    """A slice of a handle; its errors are also of the class `SafetensorError`."""

    def __init__(self, part: TensorSlice[Any], *, is_numpy: bool) -> None:
        vars(self).update(vars(part))
        self._is_numpy = is_numpy

    def __getitem__(self, key: Any) -> Any:
        if self._is_numpy:
            check_numpy_index(key, self.shape)
        with raised_as_safetensors():
            return super().__getitem__(key)


def _is_for_safetensors(filename: Any, device: Any, storage_options: Any, options: Options | None) -> bool:
    """Whether a local file stays on the CPU, and no argument needs the engine."""
    if storage_options or options is not None or str(device) != "cpu":
        return False
    path = text_of(filename)
    is_path = isinstance(path, str) and scheme_of(path) == "file"
    return is_path and "://" not in path and not os.path.isdir(path)
