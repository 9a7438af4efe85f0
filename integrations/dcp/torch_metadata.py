"""Converts the metadata of a checkpoint into torch's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from streamer.core.errors import FormatError
from streamer.core.format.dcp_metadata import DcpMetadata, SavedChunk, SavedTensor
from streamer.core.quoting import quoted

_MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last, torch.preserve_format)


def metadata_of_dcp(saved: DcpMetadata, load_id: str, label: str) -> Metadata:
    """Return the metadata of a DCP checkpoint."""
    entries: dict[str, Any] = {
        name: BytesStorageMetadata() if tensor is None else _tensor(name, tensor, label)
        for name, tensor in saved.entries.items()
    }
    storage_data = {
        MetadataIndex(name, None if offset is None else offset): item for (name, offset), item in saved.items.items()
    }
    return _metadata(
        entries,
        storage_data,
        {"planner_data": saved.planner_data, "version": saved.version},
        {"checkpoint_id": label, "save_id": saved.save_id, "load_id": load_id},
    )


def metadata_of_tensors(tensors: Mapping[str, TensorStorageMetadata], load_id: str, label: str) -> Metadata:
    """Return the metadata of tensors, without their places in the files: only the reader knows those."""
    storage_data = {
        MetadataIndex(name, chunk.offsets): None for name, tensor in tensors.items() for chunk in tensor.chunks
    }
    return _metadata(dict(tensors), storage_data, {}, {"checkpoint_id": label, "load_id": load_id})


def metadata_of_tensor(chunks: Sequence[SavedChunk], dtype: torch.dtype) -> TensorStorageMetadata:
    """Return the metadata of one tensor; its size follows from its chunks."""
    ends = [[sum(pair) for pair in zip(each.offsets, each.sizes, strict=True)] for each in chunks]
    parts = [ChunkStorageMetadata(torch.Size(each.offsets), torch.Size(each.sizes)) for each in chunks]
    size = torch.Size(max(column) for column in zip(*ends, strict=True))
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, parts)


def _tensor(name: str, saved: SavedTensor, label: str) -> TensorStorageMetadata:
    dtype, layout = getattr(torch, saved.dtype, None), getattr(torch, saved.layout.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not isinstance(layout, torch.layout):
        what = f"torch {torch.__version__} has no dtype {quoted(saved.dtype)} with layout {quoted(saved.layout)}"
        raise FormatError(f"tensor {quoted(name)} cannot be loaded: {what}", uri=label, hint="Use a newer torch")
    if not 0 <= saved.memory_format < len(_MEMORY_FORMATS):
        raise FormatError(f"tensor {quoted(name)} has an unknown memory format", uri=label)
    properties = TensorProperties(
        dtype=dtype,
        layout=layout,
        requires_grad=saved.requires_grad,
        memory_format=_MEMORY_FORMATS[saved.memory_format],
        **_supported(TensorProperties, {"strides": saved.strides}),
    )
    chunks = [ChunkStorageMetadata(torch.Size(each.offsets), torch.Size(each.sizes)) for each in saved.chunks]
    return TensorStorageMetadata(properties, torch.Size(saved.size), chunks)


def _metadata(
    entries: dict[str, Any], storage_data: dict[MetadataIndex, Any], others: dict[str, Any], ids: dict[str, Any]
) -> Metadata:
    """Return a `Metadata` with the fields that this version of torch has."""
    meta = StorageMeta(**_supported(StorageMeta, ids))
    return Metadata(entries, **_supported(Metadata, {**others, "storage_data": storage_data, "storage_meta": meta}))


def _supported(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values for which this version of torch has a field."""
    return {name: value for name, value in values.items() if name in _names(kind)}


@cache  # called for each tensor
def _names(kind: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))
