"""A tensor that is read when it is indexed; only the rows that the index needs are read.

Refuses to be used as a tensor before that, and to be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from math import prod
from numbers import Integral
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from streamer.core.errors import TensorIndexError
from streamer.core.format.dtypes import bits_of, byte_length
from streamer.core.format.header_entries import TensorEntry
from streamer.core.quoting import printable, quoted, size_text
from streamer.core.tensors.frameworks import Framework, TensorT
from streamer.core.tensors.torch_modes import normal_tensors

if TYPE_CHECKING:
    from streamer.core.checkpoint.tensor_parts import Cut
    from streamer.core.encryption.sealed_files import SealedParameters
    from streamer.core.engine.native_session import SourceObject

HINT = "it is not read yet: index it with [...] to read it, or with [:10] to read rows"


def _refuse(self: object, *_: object) -> NoReturn:
    raise TypeError(f"{self!r} cannot be used as a tensor: {HINT}")


class Unread:
    """A base class: operators, attributes of tensors, functions of torch and pickle raise an error with the reason."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and libraries test objects for such attributes
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        raise AttributeError(f"{self!r} has no {name!r}: {HINT}", name=name, obj=self)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied: index it with [...], or pickle its checkpoint")

    def __eq__(self, other: object) -> bool:
        """Say whether both are the same object; a comparison with a tensor or a number raises an error."""
        return self is other if other is None or isinstance(other, Unread) else _refuse(self)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True  # so that ``if checkpoint.get(name):`` works, although `__len__` raises

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, _arguments: Any = (), _named: Any = None) -> NoReturn:
        """Refuse every function of torch."""
        name = getattr(function, "__name__", "this function")
        raise TypeError(f"torch's {name} got a {cls.__name__} in place of a tensor: {HINT}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = __float__ = __int__ = __len__ = __setitem__ = _refuse


_INDEX_ERRORS = (IndexError, OverflowError, TypeError, ValueError)  # raised by Python, torch and numpy


def narrow(entry: TensorEntry, key: Any) -> tuple[TensorEntry, Any]:
    """Find the byte range that an index needs.

    Leading integers, then one slice with a positive step, select contiguous rows. The framework applies the rest of
    the index, and every other kind of index.

    Returns:
        The entry of the rows to read, and the index (a tuple, or `key` itself) to apply to the tensor of these rows.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    if not all(_is_basic(part) for part in parts):
        return entry, key  # one list or mask changes the meaning of the integers beside it
    shape, begin, end = entry.shape, entry.begin, entry.end
    while parts and shape and _has_whole_bytes(entry.dtype, shape[1:]):
        row_bytes = (end - begin) // shape[0] if shape[0] else 0
        part = parts[0]
        if isinstance(part, Integral):
            row = _row(int(part), shape[0])
            begin, end, shape = begin + row * row_bytes, begin + (row + 1) * row_bytes, shape[1:]
            parts.pop(0)
        elif isinstance(part, slice) and (part.step is None or part.step > 0):
            first, stop, step = part.indices(shape[0])
            last = max(first, stop)
            begin, end = begin + first * row_bytes, begin + last * row_bytes
            shape = (last - first, *shape[1:])
            parts[0] = slice(None, None, step)
            break
        else:
            break
    return entry._replace(shape=shape, begin=begin, end=end), tuple(parts)


def _has_whole_bytes(dtype: str, row: tuple[int, ...]) -> bool:
    """Say whether rows of this shape share no byte; rows of a dtype of 4 or 6 bits may share one."""
    return prod(row) * bits_of(dtype) % 8 == 0


def _is_basic(part: Any) -> bool:
    return part is None or part is Ellipsis or (isinstance(part, (Integral, slice)) and not isinstance(part, bool))


def _row(index: int, rows: int) -> int:
    if not -rows <= index < rows:
        raise IndexError(f"index {index} is out of bounds for a dimension of {rows}")
    return index % rows


def _check_kind(part: Any) -> None:
    """Refuse an index that no framework accepts, before anything is read."""
    is_sequence = hasattr(part, "__len__") and not isinstance(part, (str, bytes, bytearray, Mapping, Set))
    if not (_is_basic(part) or is_sequence or hasattr(part, "__index__")):
        raise TypeError(f"{type(part).__name__} is no index")


class TensorSlice(Unread, Generic[TensorT]):
    """One tensor of a checkpoint; ``[...]`` reads it. Thread-safe.

    Every other operation of a tensor raises an error that says that the tensor is not read yet.

    Attributes:
        metadata: The metadata of the checkpoint.
        differing: The keys of the metadata for which its shards have different values.
        remarks: What the checkpoint's report says of its files.
        sealed: The parameters of the encryption of its file, if it is encrypted.
    """

    def __init__(
        self,
        entry: TensorEntry,
        read: Callable[[TensorEntry], Any],
        framework: Framework,
        uri: str | None = None,
        *,
        cut: Cut | None = None,  # with one, every index reads all bytes of `entry`
        metadata: Mapping[str, str] | None = None,
        differing: Set[str] = frozenset(),
        remarks: tuple[str, ...] = (),
        sealed: SealedParameters | None = None,
        source: SourceObject | None = None,
    ) -> None:
        self._read_entry = entry
        self._entry = entry if cut is None else entry._replace(shape=cut.kept)
        self._cut = cut
        self._read = read
        self._framework = framework
        self._uri = uri
        self.metadata: Mapping[str, str] = metadata or {}
        self.differing, self.remarks, self.sealed, self._source = differing, remarks, sealed, source

    @property
    def stored_name(self) -> str:
        """The name of the tensor in its checkpoint."""
        return self._entry.name

    @property
    def origin(self) -> str:
        """Which bytes of which version of which file it shows, on any machine; empty if nothing tells."""
        source, entry = self._source, self._read_entry
        if source is None or not (source.identity and source.version_for_all):
            return ""
        of_file = source.identity, source.version_for_all, source.size_bytes
        return repr((of_file, entry, self._cut, self.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor after it is read: torch packs two F4 values into an element."""
        return self._framework.shape(self._entry)

    @property
    def dtype(self) -> Any:
        """The dtype of the tensor after it is read, a ``torch.dtype`` or ``numpy.dtype``."""
        return self._framework.final_dtype(self._entry)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor in the checkpoint; for a part of a tensor, bytes of the part."""
        return byte_length(self._entry.shape, self._entry.dtype)

    @property
    def read_bytes(self) -> int:
        """Memory that reading the whole tensor takes: what is read, and beside it what a cast or a cut makes of it."""
        stored_bytes = self._read_entry.end - self._read_entry.begin
        made_bytes = prod(self.shape) * int(self.dtype.itemsize)
        is_same = self.dtype == self._framework.dtype(self._entry) and made_bytes == stored_bytes
        return stored_bytes if is_same and self._cut is None else stored_bytes + made_bytes

    @property
    def is_cut(self) -> bool:
        """Whether every index reads all bytes, because the tensor is cut out of a larger one."""
        return self._cut is not None

    def get_shape(self) -> list[int]:
        """Return the shape in the checkpoint."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Return the name of the dtype in the checkpoint, as safetensors spells it (``"BF16"``, ``"F8_E4M3"``)."""
        return self._entry.dtype

    def __repr__(self) -> str:
        what = f"{quoted(self._entry.name)} {self._entry.dtype} {self.get_shape()}, {size_text(self.nbytes)}"
        return f"<TensorSlice {what} in {printable(self._uri or 'a checkpoint')}>"

    def __getitem__(self, key: Any) -> TensorT:
        """Read the rows that the index needs, then apply the rest of the index by the framework's own rules."""
        try:
            for part in key if isinstance(key, tuple) else (key,):
                _check_kind(part)
            entry, rest = narrow(self._entry, key)
            if self._cut is not None:
                entry, rest = self._read_entry, key if isinstance(key, tuple) else (key,)
        except _INDEX_ERRORS as error:
            raise self._refused(error) from error
        tensor: TensorT = self._read(entry)
        if isinstance(rest, tuple) and all(part is Ellipsis for part in rest[:1]) and len(rest) < 2:
            return tensor
        try:
            with normal_tensors():
                indexed: TensorT = tensor[rest]  # type: ignore[index]  # the tensors of every framework can be indexed
            return indexed
        except _INDEX_ERRORS as error:
            raise self._refused(error) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Read the whole tensor for ``numpy.asarray``."""
        if copy is False:
            raise ValueError("a tensor of a checkpoint is read into new memory, which copy=False does not allow")
        import numpy as np  # noqa: PLC0415  seldom needed

        return np.asarray(self[...], dtype=dtype)

    def _refused(self, error: Exception) -> TensorIndexError:
        return TensorIndexError(
            f"tensor {quoted(self._entry.name)} of shape {self.get_shape()} cannot be indexed so: {error}",
            uri=self._uri,
            hint="Index it as torch or numpy is indexed; get_shape() returns its shape",
        )
