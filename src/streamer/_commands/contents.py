"""What is at a URI: its files, and the tensors of its checkpoint by name or by module. Only headers are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from streamer._checkpoint_headers import open_checkpoint, pinned
from streamer._locate_shards import opened_store
from streamer._pull.listing import files_below, is_selected
from streamer.core.format.dtypes import byte_length
from streamer.core.options.settings import resolve
from streamer.core.quoting import counted, printable_lines, quoted, size_text
from streamer.core.request.request import Request
from streamer.core.shards.shards import sized
from streamer.core.store.sources import ObjectInfo


def list_files(
    uri: str, options: Mapping[str, Any] | None, include: Sequence[str], exclude: Sequence[str]
) -> dict[str, ObjectInfo]:
    """Return the files that a pull would copy, by their names."""
    settings = resolve(None)
    (uri,) = pinned(Request(uri=uri, storage_options=options), settings).uris
    with opened_store(uri, options, None, settings) as store:
        listed = files_below(store, uri, settings).files
        names = [name for name in sorted(listed) if is_selected(name, include, exclude)]
        return dict(zip(names, sized(store, [listed[name] for name in names]), strict=True))


class Row(NamedTuple):
    """One tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    shard: str


@dataclass(frozen=True)
class Contents:
    """The result of `inspect`."""

    uri: str  # the URI of the checkpoint, without secrets
    format: str  # what the shards are: ``"safetensors"``, ``"PyTorch"``, …
    shards: dict[str, int]  # the size of each shard, by name
    tensors: list[Row]  # in the order of their bytes
    metadata: dict[str, str]
    is_encrypted: bool
    remarks: tuple[str, ...]

    @property
    def dtypes(self) -> dict[str, tuple[int, int]]:
        """Number of tensors and bytes of each dtype, the largest first."""
        found: dict[str, tuple[int, int]] = {}
        for row in self.tensors:
            tensors, size_bytes = found.get(row.dtype, (0, 0))
            found[row.dtype] = tensors + 1, size_bytes + row.bytes
        return dict(sorted(found.items(), key=lambda each: -each[1][1]))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            "uri": self.uri,
            "format": self.format,
            "encrypted": self.is_encrypted,
            "bytes": sum(row.bytes for row in self.tensors),
            "dtypes": {name: {"tensors": tensors, "bytes": size} for name, (tensors, size) in self.dtypes.items()},
            "shards": [{"name": name, "bytes": size_bytes} for name, size_bytes in self.shards.items()],
            "tensors": [row._asdict() for row in self.tensors],
            "metadata": self.metadata,
            "remarks": self.remarks,
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row of text for each tensor, below a head."""
        rows = [(row.name, row.dtype, shape_text(row.shape), size_text(row.bytes), row.shard) for row in self.tensors]
        return [("TENSOR", "DTYPE", "SHAPE", "SIZE", "SHARD"), *rows]

    def tree(self) -> list[tuple[str, ...]]:
        """Return a row of text for each module and tensor, below a head; numbered modules that are alike are one."""
        top: _Module = {}
        for row in self.tensors:
            *modules, last = row.name.split(".")
            inner = top
            for name in modules:
                inner = inner.setdefault(f"{name}.", {})  # type: ignore[assignment]  # a name with a dot is a module
            inner[last] = row
        return [("MODULE", "DTYPE", "SHAPE", "SIZE"), *_lines(top, 0)]

    def summary(self) -> str:
        """Return the last lines: totals, metadata, remarks."""
        kind = f"encrypted {self.format}" if self.is_encrypted else self.format
        size = size_text(sum(row.bytes for row in self.tensors))
        shards = counted(len(self.shards), "shard")
        lines = [f"{self.uri}: {shards} of {kind}, {counted(len(self.tensors), 'tensor')}, {size}"]
        lines += [f"{name}: {counted(n, 'tensor')}, {size_text(size)}" for name, (n, size) in self.dtypes.items()]
        lines += [f"metadata {quoted(name)}: {quoted(value)}" for name, value in self.metadata.items()]
        lines += [f"note: {each}" for each in self.remarks]
        return printable_lines(lines)


_Module: TypeAlias = "dict[str, Row | _Module]"


def inspect(request: Request) -> Contents:
    """Read the headers of a checkpoint; raises as `streamer.open`."""
    checkpoint = open_checkpoint(request, any_format=True)
    catalog, rows = checkpoint.catalog, []
    names = [each.uri.rpartition("/")[2] for each in catalog.shards]
    for name, each in catalog.tensors.items():
        kept = each.kept
        rows.append(Row(name, kept.dtype, tuple(kept.shape), byte_length(kept.shape, kept.dtype), names[each.shard]))
    return Contents(
        checkpoint.label,
        checkpoint.format_name,
        {name: each.size_bytes for name, each in zip(names, catalog.shards, strict=True)},
        rows,
        dict(catalog.metadata),
        checkpoint.is_sealed,
        tuple(checkpoint.remarks),
    )


def shape_text(shape: Sequence[int]) -> str:
    """Return the text of a shape.

    Example:
        >>> shape_text((4096, 11008)), shape_text(())
        ('4096 x 11008', 'scalar')
    """
    return " x ".join(map(str, shape)) or "scalar"


def _lines(module: _Module, depth: int) -> Iterator[tuple[str, ...]]:
    alike: dict[object, list[str]] = {}
    for name, part in module.items():
        is_numbered = isinstance(part, dict) and name[:-1].isdecimal()
        alike.setdefault(_form(part) if is_numbered else name, []).append(name)
    for names in alike.values():
        part, indent = module[names[0]], "  " * depth
        if isinstance(part, Row):
            yield indent + names[0], part.dtype, shape_text(part.shape), size_text(part.bytes)
            continue
        rows = list(_rows_in(part))
        size_bytes = len(names) * sum(row.bytes for row in rows)
        dtypes = ", ".join(sorted({row.dtype for row in rows}))
        label = indent + names[0].removesuffix(".")
        if len(names) > 1:
            numbers = sorted(int(name[:-1]) for name in names)
            is_run = numbers[-1] - numbers[0] == len(numbers) - 1
            label = f"{indent}{numbers[0]}-{numbers[-1]}" if is_run else f"{indent}{len(names)} numbers"
        yield label, dtypes, counted(len(rows) * len(names), "tensor"), size_text(size_bytes)
        yield from _lines(part, depth + 1)


def _form(part: Row | _Module) -> object:
    """Return what modules that are alike have in common."""
    if isinstance(part, Row):
        return part.dtype, part.shape
    return tuple((name, _form(inner)) for name, inner in part.items())


def _rows_in(module: _Module) -> Iterator[Row]:
    for part in module.values():
        yield from [part] if isinstance(part, Row) else _rows_in(part)
