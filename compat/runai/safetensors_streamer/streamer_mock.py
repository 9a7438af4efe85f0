"""Lets tests of other projects read a local folder in place of a bucket, under Run:ai's names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamer.compat.runai.s3_utils.s3_utils import S3Credentials, filter_allow, filter_ignore, is_gs_path, is_s3_path
from streamer.compat.runai.safetensors_streamer.safetensors_streamer import SafetensorsStreamer, list_safetensors

if TYPE_CHECKING:
    import torch

__all__ = ["StreamerPatcher"]


class StreamerPatcher:
    """Replaces functions of this package: ``s3://any-bucket/path`` and ``gs://…`` mean ``path`` in a local folder.

    Args:
        local_bucket_path: The folder.

    Example:
        >>> StreamerPatcher("/folder").convert_remote_path_to_local_path("s3://bucket/in/file")
        '/folder/in/file'
    """

    def __init__(self, local_bucket_path: str) -> None:
        self.local_path = local_bucket_path

    def is_remote_path(self, path: str) -> bool:
        """Whether a path is a URL of S3 or GCS."""
        return is_s3_path(path) or is_gs_path(path)

    def convert_remote_path_to_local_path(self, path: str) -> str:
        """Return the path in the folder; any other path is returned unchanged."""
        if not self.is_remote_path(path):
            return path
        return os.path.join(self.local_path, path.split("://", 1)[1].partition("/")[2])

    def convert_local_path_to_mocked_remote_path(self, local_path_result: str, original_remote_path: str) -> str:
        """Return the URL of a path in the folder, in the bucket of `original_remote_path`."""
        scheme, _, rest = original_remote_path.partition("://")
        inside = os.path.relpath(local_path_result, self.local_path)
        if not rest or inside.startswith(".."):
            return local_path_result
        return f"{scheme}://{rest.partition('/')[0]}/{inside}"

    def shim_list_safetensors(self, path: str, s3_credentials: S3Credentials | None = None) -> list[str]:
        """Replace `list_safetensors`."""
        found = list_safetensors(self.convert_remote_path_to_local_path(path), s3_credentials)
        return [self.convert_local_path_to_mocked_remote_path(each, path) for each in found]

    def shim_pull_files(
        self,
        model_path: str,
        dst: str,
        allow_pattern: list[str] | None = None,
        ignore_pattern: list[str] | None = None,
        s3_credentials: S3Credentials | None = None,  # noqa: ARG002  Run:ai's signature
    ) -> None:
        """Replace `pull_files`.

        Raises:
            NotImplementedError: the path is no URL of S3 or GCS.
        """
        if not self.is_remote_path(model_path):
            raise NotImplementedError("pull_files copies from a storage, and this is a folder on a disk")
        source = self.convert_remote_path_to_local_path(model_path)
        files = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
        names = [os.path.relpath(each, source) for each in files]
        names = names if allow_pattern is None else filter_allow(names, allow_pattern)
        for name in filter_ignore(names, ignore_pattern or []):
            target = os.path.join(dst, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.join(source, name), target)

    def create_mock_streamer(self, *_arguments: Any, **_named: Any) -> _MockStreamer:
        """Replace `SafetensorsStreamer`."""
        return _MockStreamer(self)


class _MockStreamer:
    def __init__(self, patcher: StreamerPatcher) -> None:
        self._patcher, self._streamer = patcher, SafetensorsStreamer()

    @property
    def files_to_tensors_metadata(self) -> dict[int, Any]:
        return self._streamer.files_to_tensors_metadata

    def __enter__(self) -> _MockStreamer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._streamer.__exit__(kind, error, at)

    def stream_file(self, path: str, *arguments: Any, **named: Any) -> None:
        self.stream_files([path], *arguments, **named)

    def stream_files(  # noqa: PLR0917  Run:ai's signature
        self,
        paths: list[str],
        s3_credentials: S3Credentials | None = None,
        device: str | None = "cpu",
        is_distributed: bool = False,
        tensor_names: Collection[str] | None = None,
        owned: bool = True,
    ) -> None:
        own = [self._patcher.convert_remote_path_to_local_path(path) for path in paths]
        self._streamer.stream_files(own, s3_credentials, device, is_distributed, tensor_names, owned)

    def get_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._streamer.get_tensors()
