"""Writes the header of a safetensors file, before any byte of its tensors is read.

Guarantees: for the same tensors and one key of metadata, the bytes equal those of safetensors' own writer: the largest
dtypes first, equal dtypes by name, no gap, padded to 8 bytes. Refuses names that JSON or the format cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamer.core.errors import UsageError
from streamer.core.format.dtypes import DTYPE_BITS
from streamer.core.format.header import LENGTH_BYTES, MAX_JSON_BYTES
from streamer.core.format.header_entries import METADATA_KEY, MOST_METADATA
from streamer.core.quoting import quoted

ALIGNMENT_BYTES = 8  # aligns the first tensor, which has the largest elements, in a mapped file

# The reference sorts by the order in which it declares its dtypes, with F4 after BOOL.
_RANK = {dtype: rank for rank, dtype in enumerate(["BOOL", *(each for each in DTYPE_BITS if each != "BOOL")])}


@dataclass(frozen=True)
class TensorLayout:
    """The description of one tensor in a header."""

    name: str  # name of the tensor
    dtype: str  # a key of `DTYPE_BITS`
    shape: tuple[int, ...]  # shape in elements of this dtype
    size_bytes: int  # size in bytes


def in_file_order(tensors: Iterable[TensorLayout]) -> list[TensorLayout]:
    """Sort tensors in the order of the file: the largest dtypes first, equal dtypes by name.

    Example:
        >>> wanted = [TensorLayout("b", "U8", (1,), 1), TensorLayout("a", "F32", (1,), 4)]
        >>> [each.name for each in in_file_order(wanted)]
        ['a', 'b']
    """
    return sorted(tensors, key=lambda each: (-_RANK[each.dtype], each.name.encode("utf-8", "surrogatepass")))


def render_header(tensors: Iterable[TensorLayout], metadata: Mapping[str, str], *, least_bytes: int = 0) -> bytes:
    """Write the length and the text of a header.

    Example:
        >>> render_header([TensorLayout("w", "U8", (2,), 2)], {})[8:]
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   '
    """
    if len(metadata) > MOST_METADATA:
        hint = "Join them: one value may hold many, as JSON"
        raise UsageError(f"the metadata has {len(metadata)} members, and a load takes {MOST_METADATA}", hint=hint)
    document: dict[str, object] = {METADATA_KEY: dict(metadata)} if metadata else {}
    begin = 0
    for each in tensors:
        if each.name == METADATA_KEY:
            raise UsageError(f"a tensor cannot be named {METADATA_KEY}: the format keeps its metadata there")
        end = begin + each.size_bytes
        document[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": [begin, end]}
        begin = end
    text = _encoded(document)
    text += b" " * max(-len(text) % ALIGNMENT_BYTES, least_bytes - LENGTH_BYTES - len(text))
    if len(text) > MAX_JSON_BYTES:
        hint = "Save fewer tensors in one file (a smaller max_shard_bytes), or shorter metadata"
        raise UsageError(f"the header would have {len(text)} bytes, more than the format allows", hint=hint)
    return len(text).to_bytes(8, "little") + text


def _encoded(document: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        wrong = quoted(error.object[max(0, error.start - 20) : error.end + 20])
        raise UsageError(f"a name or the metadata is no UTF-8, as the header is: {wrong}") from None
