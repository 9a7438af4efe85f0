"""Run:ai's class that reads once for several ranks; here each rank reads its own requests."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from streamer.compat.runai.file_streamer.file_streamer import FileStreamer
from streamer.compat.runai.file_streamer.requests_iterator import FileChunks
from streamer.compat.runai.s3_utils.s3_utils import S3Credentials

if TYPE_CHECKING:
    import torch

__all__ = ["DistributedStreamer"]


class DistributedStreamer:
    """Reads ranges inside a ``with`` block, as a `FileStreamer`.

    Attributes:
        file_streamer: The reader.
        is_distributed: Whether ranks share what they read; always False.
    """

    def __init__(self) -> None:
        self.file_streamer = FileStreamer()
        self.is_distributed = False

    def __enter__(self) -> DistributedStreamer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.file_streamer.__exit__(kind, error, at)

    def stream_files(
        self,
        file_stream_requests: list[FileChunks],
        credentials: S3Credentials | None = None,
        device: str | None = "cpu",
        is_distributed: bool = False,  # noqa: ARG002  Run:ai's signature
        owned: bool = True,
    ) -> None:
        """Start reading; `is_distributed` has no effect. See `FileStreamer.stream_files`."""
        self.file_streamer.stream_files(file_stream_requests, credentials, device, owned=owned)

    def get_chunks(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """See `FileStreamer.get_chunks`."""
        return self.file_streamer.get_chunks()

    def set_is_distributed(self, is_distributed: bool, device: str | None) -> None:
        """Do nothing: ranks do not share what they read."""

    def ring_info(self) -> tuple[int, int, int] | None:
        """Return None: there is no ring of buffers."""
        return None

    def get_group_size(self) -> int:
        """Return 1: each rank reads for itself."""
        return 1
