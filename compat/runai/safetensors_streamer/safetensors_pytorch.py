"""The tensors in the header of a safetensors file, under Run:ai's names."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from streamer._checkpoint_headers import open_checkpoint
from streamer.compat.runai.s3_utils.s3_utils import S3Credentials, credentials_of
from streamer.compat.runai.variables import options_from_environment, storage_options_for
from streamer.core.checkpoint.catalog import Catalog
from streamer.core.request.request import Request
from streamer.core.tensors.frameworks import framework_of

__all__ = ["Offsets", "SafetensorMetadata", "metadata_of", "prepare_request"]


class Offsets(NamedTuple):
    """First byte of a tensor and the byte after its last one, counted from the first tensor of the file."""

    start: int
    end: int

    def get_diff(self) -> int:
        """Return the length in bytes."""
        return self.end - self.start


class SafetensorMetadata(NamedTuple):
    """One tensor of a file."""

    name: str
    shape: list[int]
    dtype: str
    offsets: Offsets

    def get_bytesize(self) -> int:
        """Return the length in bytes."""
        return self.offsets.get_diff()

    def get_item_count(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    def get_torch_dtype(self) -> Any:
        """Return the dtype in torch.

        Raises:
            UnsupportedDtypeError: this version of torch has no such dtype.
        """
        from streamer.core.format.header_entries import TensorEntry  # noqa: PLC0415

        entry = TensorEntry(self.name, self.dtype, tuple(self.shape), *self.offsets)
        return framework_of("pt", "cpu", None).final_dtype(entry)


def metadata_of(catalog: Catalog) -> list[list[SafetensorMetadata]]:
    """Return the tensors of each file, in file order."""
    files: list[list[SafetensorMetadata]] = [[] for _ in catalog.shards]
    begins = _data_begins(catalog)
    for each in catalog.in_file_order():
        entry, begin = each.entry, begins[each.shard]
        offsets = Offsets(entry.begin - begin, entry.end - begin)
        files[each.shard].append(SafetensorMetadata(entry.name, list(entry.shape), entry.dtype, offsets))
    return files


def prepare_request(
    fs: Any,  # noqa: ARG001  Run:ai's signature
    paths: list[str],
    s3_credentials: S3Credentials | None,
) -> list[tuple[int, list[SafetensorMetadata], list[int]]]:
    """Read the headers of files.

    Args:
        fs: Not used.
        paths: The paths of the files.
        s3_credentials: The credentials for S3.

    Returns:
        For each file: the offset of its first tensor, its tensors, and their sizes in bytes.

    Raises:
        StreamerError: as `streamer.load`.
    """
    credentials = credentials_of(s3_credentials)
    options = [storage_options_for(path, credentials) for path in paths]
    request = Request(uri=paths, storage_options=options, options=options_from_environment())
    catalog = open_checkpoint(request).catalog
    begins = _data_begins(catalog)
    return [
        (begins[number], tensors, [each.get_bytesize() for each in tensors])
        for number, tensors in enumerate(metadata_of(catalog))
    ]


def _data_begins(catalog: Catalog) -> list[int]:
    begins = [each.size_bytes for each in catalog.shards]
    for each in catalog.tensors.values():
        begins[each.shard] = min(begins[each.shard], each.entry.begin)
    return begins
