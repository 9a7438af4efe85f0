"""Replacements for torch's readers of Hugging Face checkpoints, with the same names and arguments, for any URL.

A program that creates one of torch's readers (as torchtitan's ``get_hf_storage_reader``) can create one of these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from streamer.core.errors import OptionError
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings
from streamer.core.secrets.hidden_arguments import hidden, hidden_uri
from streamer.core.store.sources import Store
from streamer.integrations.dcp.format_detection import Found
from streamer.integrations.dcp.quantized import QuantizedTensorFiles
from streamer.integrations.dcp.reader import StorageReader
from streamer.integrations.dcp.tensor_files import tensor_files_in

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["HuggingFaceStorageReader", "QuantizedHuggingFaceStorageReader"]


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
        path, storage_options = hidden_uri(path), hidden(storage_options)
        super().__init__(path, storage_options=storage_options, fs=fs, options=options)
        self.thread_count = _counted("thread_count", thread_count)

    def _in(self, store: Store, settings: Settings, rank: int | None) -> Found:  # noqa: ARG002  of its base
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
        path, storage_options = hidden_uri(path), hidden(storage_options)
        super().__init__(path, thread_count, storage_options=storage_options, fs=fs, options=options)
        if not isinstance(target_dtype, torch.dtype) or not target_dtype.is_floating_point:
            raise OptionError(f"target_dtype is a floating-point torch.dtype, not {str(target_dtype)[:80]}")
        self.target_dtype, self.block_size = target_dtype, _counted("block_size", block_size)

    def _in(self, store: Store, settings: Settings, rank: int | None) -> Found:  # noqa: ARG002  of its base
        files = tensor_files_in(store, self._location, settings)
        return QuantizedTensorFiles(files, self.target_dtype, self.block_size)


def _counted(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise OptionError(f"{name} is a whole number of at least 1")
    return value
