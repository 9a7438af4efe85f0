"""Streams tensors of safetensors files in the order of arrival, under Run:ai's names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint
from streamer._stream import Stream
from streamer.compat.runai.distributed_streamer.distributed_streamer import DistributedStreamer
from streamer.compat.runai.s3_utils.s3_utils import S3Credentials, credentials_of, s3_glob
from streamer.compat.runai.safetensors_streamer.object_storage_model import ObjectStorageModel, pull_files
from streamer.compat.runai.safetensors_streamer.safetensors_pytorch import SafetensorMetadata, metadata_of
from streamer.compat.runai.variables import options_from_environment, storage_options_for
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.errors import OptionError
from streamer.core.path_objects import is_path_object
from streamer.core.request.request import Request
from streamer.core.store.names import scheme_of

if TYPE_CHECKING:
    import torch

__all__ = ["ObjectStorageModel", "SafetensorsStreamer", "list_safetensors", "pull_files"]


def list_safetensors(path: str, s3_credentials: S3Credentials | None = None) -> list[str]:
    """Return the safetensors files directly in a folder; an empty list if a local folder does not exist.

    Raises:
        StorageError: or a subclass.
    """
    if scheme_of(path) == "file" and not os.path.isdir(path):
        return []
    return s3_glob(path, ["*.safetensors"], s3_credentials)


class SafetensorsStreamer:
    """Reads safetensors files inside a ``with`` block.

    Attributes:
        file_streamer: Not used for tensors; present for its methods.
        files_to_tensors_metadata: The streamed tensors of each file, by its position in the call.
        total_size: Total bytes of the streamed tensors.
        device_str: The device of the tensors.
    """

    def __init__(self) -> None:
        self.file_streamer = DistributedStreamer()
        self.files_to_tensors_metadata: dict[int, list[SafetensorMetadata]] = {}
        self.total_size = 0
        self.device_str: str | None = None
        self.unaligned_copies = 0
        self._stream: Stream[torch.Tensor] | None = None

    def __enter__(self) -> SafetensorsStreamer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def stream_file(  # noqa: PLR0917  Run:ai's signature
        self,
        path: str,
        s3_credentials: S3Credentials | None = None,
        device: str | None = "cpu",
        is_distributed: bool = False,
        tensor_names: Collection[str] | None = None,
        owned: bool = True,
    ) -> None:
        """Start reading one file; see `stream_files`."""
        self.stream_files([path], s3_credentials, device, is_distributed, tensor_names, owned)

    def stream_files(  # noqa: PLR0917  Run:ai's signature
        self,
        paths: list[str],
        s3_credentials: S3Credentials | None = None,
        device: str | None = "cpu",
        is_distributed: bool = False,  # noqa: ARG002  Run:ai's signature
        tensor_names: Collection[str] | None = None,
        owned: bool = True,  # noqa: ARG002  Run:ai's signature
    ) -> None:
        """Start reading files.

        Args:
            paths: Paths or URLs.
            s3_credentials: The credentials for S3.
            device: The device of the tensors.
            is_distributed: No effect: every rank reads its own requests.
            tensor_names: The tensors to read; None for all.
            owned: No effect: every tensor owns its memory.

        Raises:
            OptionError: `paths` is a single path.
            ValueError: `tensor_names` is a string or empty, or names a tensor that does not exist.
            StreamerError: as `streamer.load`.
        """
        if isinstance(paths, (str, os.PathLike)) or is_path_object(paths):
            raise OptionError("paths must be a list of paths or URLs", hint="Call stream_file for one")
        _check_names(tensor_names)
        self._close()
        credentials = credentials_of(s3_credentials)
        options = [None if is_path_object(path) else storage_options_for(path, credentials) for path in paths]
        place = "cpu" if device is None else str(device)
        request = Request(uri=paths, storage_options=options, options=options_from_environment(), device=place)
        checkpoint = open_checkpoint(request)
        wanted = _wanted(checkpoint, tensor_names)
        names = {each.entry.name for each in wanted}
        self.device_str = place
        self.files_to_tensors_metadata = {
            number: [each for each in tensors if each.name in names]
            for number, tensors in enumerate(metadata_of(checkpoint.catalog))
        }
        self.total_size = sum(each.entry.end - each.entry.begin for each in wanted)
        self._stream = Stream(checkpoint, wanted, framework_for(request), None, progress=False)

    def get_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and tensor, in the order of arrival.

        Raises:
            StreamerError: as `streamer.load`.
        """
        if self._stream is None:
            raise ValueError("nothing is streamed: call stream_files first")
        yield from self._stream

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _check_names(names: Collection[str] | None) -> None:
    if isinstance(names, str):
        raise ValueError("tensor_names must be a collection of names, not a single str")
    if names is not None and not names:
        raise ValueError("tensor_names is empty: None is for all tensors")


def _wanted(checkpoint: OpenedCheckpoint, names: Collection[str] | None) -> list[ShardTensor]:
    if names is None:
        return list(checkpoint.catalog.in_file_order())
    missing = sorted(set(names) - checkpoint.catalog.tensors.keys())
    if missing:
        raise ValueError(f"tensor_names that are not in the checkpoint: {missing[:10]}")
    return list(checkpoint.catalog.in_file_order(set(names)))
