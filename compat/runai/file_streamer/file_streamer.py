"""Reads ranges of files as tensors of bytes, in the order of arrival, under Run:ai's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamer.compat.runai.file_streamer.requests_iterator import FileChunks
from streamer.compat.runai.s3_utils.s3_utils import S3Credentials, credentials_of
from streamer.compat.runai.submissions import FileLookup, listed_files
from streamer.compat.runai.variables import options_from_environment, storage_options_for
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import OptionError, StreamerError, TruncatedError, UsageError
from streamer.core.options.settings import resolve

if TYPE_CHECKING:
    import torch

__all__ = ["FileStreamer", "RunaiStreamerInvalidInputException"]


class RunaiStreamerInvalidInputException(UsageError):  # noqa: N818  Run:ai's name
    """An argument is wrong."""


class FileStreamer:
    """Reads ranges inside a ``with`` block; each tensor owns its memory.

    Attributes:
        device_str: The device of the tensors.
    """

    def __init__(self) -> None:
        self.device_str = "cpu"
        self._requests: list[FileChunks] = []
        self._places: list[tuple[int, int]] = []
        self._session: ReadSession | None = None

    def __enter__(self) -> FileStreamer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def stream_files(
        self,
        file_stream_requests: list[FileChunks],
        credentials: S3Credentials | None = None,
        device: str | None = "cpu",
        memory_limit: int | None = None,
        owned: bool = True,  # noqa: ARG002  Run:ai's signature
    ) -> None:
        """Start reading.

        Args:
            file_stream_requests: Files and their ranges.
            credentials: The credentials for S3.
            device: The device of the tensors.
            memory_limit: The maximum of bytes that are read and not yet taken; None uses the option.
            owned: No effect: every tensor owns its memory.

        Raises:
            ValueError: ranges of an earlier call are not read yet.
            RunaiStreamerInvalidInputException: there is no such device.
            StreamerError: as `streamer.load`.
        """
        if self._session is not None:
            raise ValueError("an earlier stream is not read to its end: read or close get_chunks first")
        self.device_str = _device(device)
        settings = replace(resolve(options_from_environment()), began=None)
        if memory_limit is not None and memory_limit > 0:
            settings = replace(settings, memory_limit_bytes=memory_limit)
        objects = FileLookup()
        objects.credentials = credentials_of(credentials)
        found = objects.found((each.path for each in file_stream_requests), settings)
        sources = [_checked(found[each.path], each) for each in file_stream_requests]
        rows = sorted(
            (number, offset, offset + size, index)
            for number, each in enumerate(file_stream_requests)
            for index, (offset, size) in enumerate(zip(each.offsets, each.sizes, strict=True))
        )
        self._requests = file_stream_requests
        self._places = [(number, index) for number, _, _, index in rows]
        plan = plan_reads([Item(*row[:3]) for row in rows], settings.coalesce_gap_bytes)
        self._session = ReadSession(sources, plan, settings, items="ranges") if rows else None

    def get_chunks(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield the number of a file, the position of a range in it, and its bytes as a tensor of one row.

        Raises:
            StreamerError: as `streamer.load`.
        """
        try:
            while self._session is not None and (arrived := self._session.next_items()):
                for item in arrived:
                    number, index = self._places[item]
                    memory = self._session.take(item)
                    yield self._requests[number].id, index, self._tensor(memory)
        finally:
            self._close()

    def list_files(
        self,
        prefix: str,
        is_recursive: bool = True,
        allow_patterns: list[str] | None = None,
        ignore_patterns: list[str] | None = None,
    ) -> list[tuple[str, int]]:
        """Return path and size of each file in a folder; patterns match whole paths.

        Raises:
            StorageError: or a subclass.
        """
        return listed_files(
            prefix,
            storage_options_for(prefix, {}),
            is_recursive=is_recursive,
            allowed=allow_patterns or [],
            ignored=ignore_patterns or [],
        )

    def _tensor(self, memory: Any) -> torch.Tensor:
        import torch  # noqa: PLC0415  importing the package does not import torch

        if memory is None:
            return torch.empty((1, 0), dtype=torch.uint8, device=self.device_str)
        return torch.frombuffer(memory, dtype=torch.uint8).view(1, -1).to(self.device_str)

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _device(device: Any) -> str:
    import torch  # noqa: PLC0415  importing the package does not import torch

    try:
        return str(torch.device("cpu" if device is None else device))
    except (RuntimeError, TypeError):
        raise RunaiStreamerInvalidInputException(f"torch has no device {str(device)[:80]!r}") from None


def _checked(found: SourceObject | StreamerError, request: FileChunks) -> SourceObject:
    if isinstance(found, StreamerError):
        raise found
    for offset, size in zip(request.offsets, request.sizes, strict=True):
        if offset < 0 or size < 0:
            raise OptionError("a range begins or ends before its file", uri=found.uri)
        if offset + size > found.size_bytes:
            raise TruncatedError(
                "the object ends before the end of the requested range",
                uri=found.uri,
                byte_range=(offset, offset + size),
                object_size=found.size_bytes,
                hint="Upload or download the file again, or request ranges that it has",
            )
    return found
