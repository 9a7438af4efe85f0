"""The index of a sharded checkpoint (``model.safetensors.index.json``): which shard holds which tensor.

Guarantees: every shard name is a relative path that stays inside the index's own folder, in every storage.
Refuses with ShardIndexError, before any I/O: absolute paths, ``..``, URLs, and all names that some storage might read
as one of these; also any document that two readers would understand differently.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any, NamedTuple

from streamer.core.errors import ShardIndexError
from streamer.core.format import strict_json
from streamer.core.format.shard_names import MOST_SHARDS, why_not_inside
from streamer.core.quoting import quoted

SHARD_SUFFIX = ".safetensors"
MAX_INDEX_BYTES = 100_000_000  # as for a header; the index of a model with 90 000 tensors has 9 million bytes
MOST_CHARACTERS = 1 << 16  # of each member except weight_map; `metadata` usually holds one number

_HINT = "It is damaged, or no index: download it, or save the checkpoint, again"


class ShardIndex(NamedTuple):
    """The content of an index."""

    weight_map: Mapping[str, str]  # maps tensor names to shard names
    shards: tuple[str, ...]  # the shard names, each once, numbers in them sorted by value
    # The ``metadata`` member, usually ``{"total_size": …}``; unchecked, and empty if absent
    metadata: Mapping[str, Any]


def parse_index(data: bytes | memoryview, *, uri: str, suffixes: tuple[str, ...] = (SHARD_SUFFIX,)) -> ShardIndex:
    """Read an index.

    Example:
        >>> index = b'{"weight_map": {"a": "m-10.safetensors", "b": "m-9.safetensors"}}'
        >>> parse_index(index, uri="m.index.json").shards
        ('m-9.safetensors', 'm-10.safetensors')
    """
    try:
        document = _Document(data)
        weight_map = document.weight_map()
        shards = tuple(sorted(document.shards, key=_natural_order))
        for shard in shards:
            _check_shard_name(shard, suffixes)
        metadata = document.others.get("metadata")
        return ShardIndex(weight_map, shards, {} if metadata is None else _object(metadata, "metadata"))
    except ShardIndexError as error:
        error.uri, error.hint = uri, error.hint or _HINT
        raise


def check_index_size(size_bytes: int, *, uri: str) -> None:
    """Refuse an index that is too large to be one, before it is read."""
    if size_bytes > MAX_INDEX_BYTES:
        raise ShardIndexError(
            f"the index has {size_bytes} bytes, more than the {MAX_INDEX_BYTES} allowed",
            uri=uri,
            hint="It is not an index, or it is damaged",
        )


class _Document:
    """An index as it is written; all tensors of a shard share one copy of its name."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.shards: dict[str, str] = {}
        self.others: dict[str, Any] = {}
        # One wide character makes the text take four bytes per character, so the dict is made after the text is freed.
        self._tensors: list[str] = []
        self._shard_of: list[str] = []
        try:
            self._read(strict_json.decode_utf8(data))
        except ShardIndexError:
            raise
        except UnicodeDecodeError as error:
            raise ShardIndexError(f"the index is not UTF-8: {error.reason} at byte {error.start}") from error
        except JSONDecodeError as error:
            hint = "Save it without the byte-order mark that it begins with" if data[:3] == codecs.BOM_UTF8 else None
            raise ShardIndexError(f"the index is not JSON: {error.msg} at character {error.pos}", hint=hint) from error
        except ValueError as error:
            raise ShardIndexError(f"the index is not acceptable JSON: {error}") from error

    def weight_map(self) -> dict[str, str]:
        """Return the shard of each tensor."""
        if "weight_map" not in self.others:
            raise ShardIndexError("the index has no weight_map", hint="It must map tensor names to shard names")
        if not self._tensors:
            raise ShardIndexError("weight_map is empty")
        shard_of = dict(zip(self._tensors, self._shard_of, strict=True))
        if len(shard_of) != len(self._tensors):
            key = next(tensor for tensor in self._tensors if shard_of.pop(tensor, None) is None)
            raise ShardIndexError(f"the index is not acceptable JSON: key {quoted(key)} occurs twice in one object")
        return shard_of

    def _read(self, text: str) -> None:
        reader = strict_json.JsonReader(text, window=MOST_CHARACTERS)
        if not reader.is_object(reader.begin):
            value, end = reader.read(reader.begin)
            reader.check_end(end)
            _object(value, "the index")

        def read_member(name: str, position: int) -> int:
            strict_json.refuse_duplicate(self.others, name)
            self.others[name] = None
            if name == "weight_map" and reader.is_object(position):
                return reader.read_texts(position, self._add)
            value, end = reader.read(position)
            if name == "weight_map":
                _object(value, "weight_map")
            self.others[name] = value if name == "metadata" else None
            return end

        reader.check_end(reader.read_members(reader.begin, read_member))

    def _add(self, tensor: str, shard: Any) -> None:
        if not isinstance(shard, str):
            raise ShardIndexError(f"weight_map gives {quoted(shard)}, not a string, for tensor {quoted(tensor)}")
        if len(self.shards) == MOST_SHARDS and shard not in self.shards:
            raise ShardIndexError(f"the index names more than {MOST_SHARDS} shards")
        self._tensors.append(tensor)
        self._shard_of.append(self.shards.setdefault(shard, shard))


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ShardIndexError(f"{what} is {quoted(value)}, not a JSON object")
    return value


def _natural_order(name: str) -> tuple[list[str | int], str]:
    # Each number follows a text, so pieces of two names compare text with text and number with number. The count of
    # significant digits comes before the digits: it orders numbers without int(), which refuses thousands of digits.
    pieces: list[str | int] = []
    for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name):
        significant = digits.lstrip("0")
        pieces += [text, len(significant), significant]
    return pieces, name


def _check_shard_name(name: str, suffixes: tuple[str, ...]) -> None:
    reason = why_not_inside(name)
    if reason is None and not name.endswith(suffixes):
        reason = f"does not end in {' or '.join(suffixes)}"
    if reason is not None:
        raise ShardIndexError(
            f"shard name {quoted(name)} {reason}",
            hint="Shards are named by their relative path inside the folder of the index",
        )
