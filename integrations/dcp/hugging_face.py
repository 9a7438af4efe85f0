"""Replacements for torch's readers of Hugging Face checkpoints, with the same names and arguments, for any URL.

A program that creates one of torch's readers (as torchtitan's ``get_hf_storage_reader``) can create one of these.

Quantised weights are multiplied by their scales, and only the requested part is read. Two forms, as in torch's own
reader. Squares: ``X.weight``, a matrix, is multiplied by ``X.weight_scale_inv``, one factor for each square of elements
(DeepSeek-V3, https://huggingface.co/deepseek-ai/DeepSeek-V3). MXFP4: ``X_blocks`` holds two 4-bit values in a byte, in
groups that share the power of two in ``X_scales`` (Open Compute Project, *Microscaling Formats Specification*, 2023,
§5.3). In both forms, a scale of the dtype U8 or F8_E8M0 is the exponent of a power of two. Scales of other integers,
and blocks that are not bytes, are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from streamer.core.checkpoint.lazy_tensor import narrow
from streamer.core.checkpoint.report import LoadReport
from streamer.core.errors import FormatError, OptionError
from streamer.core.format.dcp_metadata import SavedChunk
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.store.sources import Store
from streamer.integrations.dcp.object_reads import Job, ObjectRange, Stored
from streamer.integrations.dcp.planned_targets import PlannedTargets
from streamer.integrations.dcp.reader import DcpCheckpoint, StorageReader
from streamer.integrations.dcp.tensor_files import TensorFiles, tensor_files_in
from streamer.integrations.dcp.torch_metadata import metadata_of_tensor, metadata_of_tensors
from streamer.integrations.library_calls import Location

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

SCALE_BIAS, NOT_A_NUMBER = 127, 255  # the bias of the exponents in MXFP4, and the byte that is no exponent
SCALES = ("U8", "F8_E8M0")  # two names of one byte: the exponent of a power of two
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the 4-bit values; the highest bit is the sign


class QuantizedTensorFiles:
    """A checkpoint whose weights are dequantised."""

    def __init__(self, files: TensorFiles, dtype: torch.dtype, block_size: int) -> None:
        self._files, self._dtype, self._block_size = files, dtype, block_size
        self._scales = {name: scale for name in files.chunks if (scale := _scale_of(name)) in files.chunks}

    def metadata(self, load_id: str) -> Metadata:
        """Return the checkpoint's metadata; they describe the dequantised tensors."""
        tensors = self._files.tensors()
        for name in self._scales:
            shape = self._shape(name)
            tensors[name] = metadata_of_tensor([SavedChunk((0,) * len(shape), shape)], self._dtype)
        return metadata_of_tensors(tensors, load_id, self._files.label)

    def read(self, plan: LoadPlan, destination: PlannedTargets, location: Location, settings: Settings) -> LoadReport:  # noqa: ARG002  of `DcpCheckpoint`
        """Read the tensors of a plan, with their scales."""
        plain = [request for request in plan.items if request.storage_index.fqn not in self._scales]
        jobs = self._files.jobs(plain, destination)
        jobs += [self._job(each, destination) for each in plan.items if each.storage_index.fqn in self._scales]
        return self._files.read_jobs(jobs, settings)

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight after dequantisation."""
        self._check_dtypes(name)
        weight, scale = self._whole(name).shape, self._whole(self._scales[name]).shape
        if name.endswith("_blocks"):
            if len(weight) < 3 or scale != weight[:-1]:
                raise self._unfit(name, weight, scale)
            return (*weight[:-2], weight[-2] * weight[-1] * 2)
        if len(weight) != 2 or scale != tuple(-(-size // self._block_size) for size in weight):
            raise self._unfit(name, weight, scale)
        return weight

    def _check_dtypes(self, name: str) -> None:
        weight, scale = self._whole(name), self._whole(self._scales[name])
        is_power, is_number = scale.entry.dtype in SCALES, scale.dtype.is_floating_point
        is_of_blocks = weight.dtype.itemsize == 1 and is_power
        if not (is_of_blocks if name.endswith("_blocks") else is_power or is_number):
            raise FormatError(
                f"tensor {quoted(name)} is {weight.entry.dtype}, its scales {scale.entry.dtype}: no known form",
                uri=self._files.label,
                hint="Read it with HuggingFaceStorageReader, and dequantise it yourself",
            )

    def _whole(self, name: str) -> Stored:
        ((offsets, stored), *others) = self._files.chunks[name].items()
        if others or any(offsets):
            raise FormatError(
                f"tensor {quoted(name)} is quantised, and in parts", uri=self._files.label, hint="Save it whole"
            )
        return stored

    def _unfit(self, name: str, weight: Sequence[int], scale: Sequence[int]) -> FormatError:
        return FormatError(
            f"tensor {quoted(name)} has shape {list(weight)}, its scales {list(scale)}",
            uri=self._files.label,
            hint=f"Pass the block_size of this checkpoint, which is not {self._block_size}",
        )

    def _job(self, request: ReadItem, destination: PlannedTargets) -> Job:
        name = request.storage_index.fqn
        self._shape(name)
        weight, scale = self._whole(name), self._whole(self._scales[name])
        kind = _Mxfp4 if name.endswith("_blocks") else _Squares
        return kind(request, weight, scale, _Context(destination, self._dtype, self._block_size))


def _scale_of(name: str) -> str:
    if name.endswith("_blocks"):
        return f"{name.removesuffix('_blocks')}_scales"
    return f"{name}_scale_inv" if name.endswith(".weight") else ""


class _Context(NamedTuple):
    destination: PlannedTargets
    dtype: torch.dtype
    block_size: int


class _Dequantization:
    """Rows of a weight, and the rows of its scales."""

    def __init__(self, request: ReadItem, weight: Stored, scale: Stored, how: _Context) -> None:
        self._request, self._how = request, how
        first, count = request.storage_offsets[0], request.lengths[0]
        rows = slice(first, first + count)
        parts = {"weight": _part(weight, rows), "scale": _part(scale, self._rows_of_scale(rows))}
        by_place = sorted(parts.items(), key=lambda named: (named[1].shard, named[1].entry.begin))
        self._roles = [role for role, _ in by_place]
        self.parts = [part for _, part in by_place]

    def finish(self, tensors: list[Any]) -> None:
        """Dequantise the rows, and deliver them."""
        named = dict(zip(self._roles, tensors, strict=True))
        result = torch.empty(tuple(self._request.lengths), dtype=self._how.dtype, device="cpu")
        self._fill(result, named["weight"], named["scale"])
        self._how.destination.fill(self._request, result)

    def _rows_of_scale(self, rows: slice) -> slice:
        return rows

    def _fill(self, result: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> None:
        raise NotImplementedError


class _Squares(_Dequantization):
    def _rows_of_scale(self, rows: slice) -> slice:
        return slice(rows.start // self._how.block_size, -(-rows.stop // self._how.block_size))

    def _fill(self, result: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> None:
        (first, left), (count, width) = self._request.storage_offsets, self._request.lengths
        size = self._how.block_size
        factor_of_column = torch.arange(left, left + width, device="cpu") // size
        above = first // size
        begin = 0
        while begin < count:  # one row of squares at a time: float32 takes four times the memory
            row_of_squares = (first + begin) // size
            end = min(count, (row_of_squares + 1) * size - first)
            factors = _factors(scale[row_of_squares - above])[factor_of_column]
            result[begin:end] = (weight[begin:end, left : left + width].to(torch.float32) * factors).to(self._how.dtype)
            begin = end


class _Mxfp4(_Dequantization):
    def _fill(self, result: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> None:
        weight, scale = weight.view(torch.uint8), scale.view(torch.uint8)
        *offsets, left = self._request.storage_offsets
        *counts, width = self._request.lengths
        values_of_group = weight.shape[-1] * 2
        groups = slice(left // values_of_group, -(-(left + width) // values_of_group))
        left -= groups.start * values_of_group
        between = [slice(first, first + count) for first, count in zip(offsets[1:], counts[1:], strict=True)]
        cut = (*between, groups)
        signed = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=self._how.dtype, device="cpu")
        pairs = torch.stack([signed.repeat(16), signed.repeat_interleave(16)], dim=1)  # the low 4 bits come first
        for row in range(len(result)):  # one row at a time: indices take eight times the memory
            blocks, exponents = (each[row][cut] for each in (weight, scale))
            values = pairs[blocks.to(torch.int32)].flatten(-2)
            powers = (exponents.to(torch.int32) - SCALE_BIAS).unsqueeze(-1)
            scaled = torch.ldexp(values, powers).masked_fill_(powers == NOT_A_NUMBER - SCALE_BIAS, torch.nan)
            result[row] = scaled.flatten(-2)[..., left : left + width]


def _factors(scale: torch.Tensor) -> torch.Tensor:
    return (scale.view(torch.float8_e8m0fnu) if scale.dtype == torch.uint8 else scale).to(torch.float32)


def _part(stored: Stored, rows: slice) -> ObjectRange:
    return ObjectRange(stored.shard, narrow(stored.entry, (rows,))[0])


class HuggingFaceStorageReader(StorageReader):
    """Reads a checkpoint of safetensors; `StorageReader` with the arguments of torch's class of this name.

    Args:
        path: The path or URL of a folder, an index or a file.
        thread_count: Accepted as in torch, and not used: the engine chooses the parallelism, see `streamer.Options`.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: As for `StorageReader`.

    Raises:
        UsageError: an argument has a wrong type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        thread_count: int = 1,
        *,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(path, storage_options=storage_options, fs=fs, options=options)
        self.thread_count = _counted("thread_count", thread_count)

    def _in(self, store: Store, settings: Settings, rank: int | None) -> DcpCheckpoint:  # noqa: ARG002  of its base
        return tensor_files_in(store, self._location, settings)


class QuantizedHuggingFaceStorageReader(HuggingFaceStorageReader):
    """Reads a checkpoint with quantised weights and dequantises them, as torch's class of this name.

    Two forms of quantised weights are read: ``X.weight`` with ``X.weight_scale_inv``, a factor for each square of
    `block_size` rows and columns (DeepSeek), and ``X_blocks`` with ``X_scales`` (MXFP4, gpt-oss). Only the rows and
    scales of the load plan are read.

    Args:
        path: As for `HuggingFaceStorageReader`.
        thread_count: As for `HuggingFaceStorageReader`.
        target_dtype: The dtype of dequantised weights.
        block_size: Rows and columns of a square.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: As for `StorageReader`.

    Raises:
        UsageError: an argument has a wrong type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        thread_count: int = 1,
        target_dtype: torch.dtype = torch.float32,
        block_size: int = 128,
        *,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(path, thread_count, storage_options=storage_options, fs=fs, options=options)
        if not isinstance(target_dtype, torch.dtype) or not target_dtype.is_floating_point:
            raise OptionError(f"target_dtype is a floating-point torch.dtype, not {str(target_dtype)[:80]}")
        self.target_dtype, self.block_size = target_dtype, _counted("block_size", block_size)

    def _in(self, store: Store, settings: Settings, rank: int | None) -> DcpCheckpoint:  # noqa: ARG002  of its base
        files = tensor_files_in(store, self._location, settings)
        return QuantizedTensorFiles(files, self.target_dtype, self.block_size)


def _counted(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise OptionError(f"{name} is a whole number of at least 1")
    return value
