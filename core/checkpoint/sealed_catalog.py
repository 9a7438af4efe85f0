"""Opens the files of an encrypted checkpoint: authenticates their headers, and reads their tags.

Guarantees: with a key, every file is encrypted with it and belongs to the same checkpoint, no file is there twice, and
a folder or an index has all files. Without a key, an encrypted file is refused. Nothing of a header is used before the
header is authenticated, except for the ranges of bytes to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.tensor_parts import Cut
from streamer.core.encryption.keys import LEAVE_OUT, KeySource
from streamer.core.encryption.sealed_files import (
    HEADER_TENSOR,
    PAYLOAD_TENSOR,
    TAG_BYTES,
    TAGS_TENSOR,
    SealedFile,
    SealedParameters,
    parsed_parameters,
    refuse_encrypted,
    sealed_file,
    tensor_name,
)
from streamer.core.encryption.secret_keys import SecretKey
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.plan import ReadPlan
from streamer.core.errors import TamperedError, UsageError
from streamer.core.format.dtypes import bits_of
from streamer.core.format.header import MAX_JSON_BYTES, parse_header
from streamer.core.format.header_entries import ENCRYPTION_METADATA, TensorEntry, differing_keys
from streamer.core.options.settings import Settings
from streamer.core.shards.shards import duplicate_tensor

_HINT = "Do not use it; get it again from where it was saved"
LEAST_ENTRY_BYTES = 16  # of one tensor's entry in a header; its name, dtype and offsets always need more


def opened_catalog(catalog: Catalog, key: KeySource | None, settings: Settings, *, is_whole: bool) -> Catalog:
    """Authenticate the headers of an encrypted checkpoint; return the catalog of its tensors."""
    if key is None:
        _refuse_encrypted(catalog)
        return catalog
    parameters = _checked_parameters(catalog, is_whole=is_whole)
    key.check_context(parameters[0].context, catalog.shards[0].uri)
    data_key = key.key_for(parameters[0].key_id, parameters[0].wrapped, catalog.shards[0].uri)
    files = [_OuterFile.of(catalog, number, each) for number, each in enumerate(parameters)]
    try:
        return _opened(catalog, files, data_key, settings)
    except TamperedError:  # the tags may have been damaged on the way: read them again
        return _opened(catalog, files, data_key, settings)


def _refuse_encrypted(catalog: Catalog) -> None:
    """Refuse encrypted files, also those whose metadata was removed."""
    names: list[list[str]] = [[] for _ in catalog.shards]
    for name, tensor in catalog.tensors.items():
        names[tensor.shard].append(name)
    for plain, own, shard in zip(catalog.header_metadata, names, catalog.shards, strict=True):
        refuse_encrypted(plain, own, shard.uri)


def _refuse_plain(catalog: Catalog, number: int) -> NoReturn:
    """Refuse a file without parameters of an encryption, which may have been removed."""
    uri = catalog.shards[number].uri
    refuse_encrypted(None, (name for name, each in catalog.tensors.items() if each.shard == number), uri)
    is_alone = not any(ENCRYPTION_METADATA in (each or {}) for each in catalog.header_metadata)
    what = "a key is given, but the file is not encrypted" + ("" if is_alone else ", and others beside it are")
    raise TamperedError(what, uri=uri, hint=LEAVE_OUT if is_alone else _HINT)


def _opened(catalog: Catalog, files: Sequence[_OuterFile], key: SecretKey, settings: Settings) -> Catalog:
    """Read the tags of all files, and authenticate their headers and tags."""
    ranges = [(number, each.begin, each.end) for number, file in enumerate(files) for each in file.to_read()]
    contents, pinned = read_ranges(catalog.shards, ranges, settings, what="tags")
    remaining = iter(contents)
    tensors: dict[str, ShardTensor] = {}
    of_files: list[Mapping[str, str]] = []
    sealed: dict[int, SealedFile] = {}
    for number, file in enumerate(files):
        hidden = next(remaining) if file.hidden is not None else None
        opened = file.opened(key, catalog.headers[number], next(remaining), hidden)
        sealed[number] = opened.file
        of_files.append(opened.metadata)
        for entry in opened.entries:
            if entry.name in tensors:
                raise duplicate_tensor(entry.name, catalog.shards[tensors[entry.name].shard].uri, file.uri)
            tensors[entry.name] = ShardTensor(number, entry)
    metadata, differing = {key: value for each in of_files for key, value in each.items()}, differing_keys(of_files)
    opened_files = catalog._replace(shards=pinned, tensors=tensors, sealed=sealed)
    return opened_files._replace(metadata=metadata, header_metadata=of_files, differing=differing)


def _checked_parameters(catalog: Catalog, *, is_whole: bool) -> list[SealedParameters]:
    found: list[SealedParameters] = []
    for number, (metadata, shard) in enumerate(zip(catalog.header_metadata, catalog.shards, strict=True)):
        parameters = parsed_parameters(metadata, shard.uri)
        if parameters is None:
            _refuse_plain(catalog, number)
        first = found[0] if found else parameters
        if _of_checkpoint(parameters) != _of_checkpoint(first):
            raise TamperedError("the file belongs to another encrypted checkpoint", uri=shard.uri, hint=_HINT)
        if any(each.shard == parameters.shard for each in found):
            raise TamperedError(f"file {parameters.shard} of the checkpoint is there twice", uri=shard.uri, hint=_HINT)
        found.append(parameters)
    if catalog.overruled:
        uri = catalog.shards[min(catalog.overruled)].uri
        raise TamperedError("the index takes tensors of this encrypted file from another one", uri=uri, hint=_HINT)
    if is_whole and len(found) < found[0].shards:
        what = f"{len(found)} of the {found[0].shards} files of the encrypted checkpoint are there"
        raise TamperedError(what, uri=catalog.shards[0].uri, hint=_HINT)
    return found


def _of_checkpoint(parameters: SealedParameters) -> SealedParameters:
    """Return what all files of a checkpoint have in common."""
    return replace(parameters, shard=1, salt=b"")


class _Opened(NamedTuple):
    file: SealedFile
    entries: Sequence[TensorEntry]
    metadata: Mapping[str, str]


class _OuterFile(NamedTuple):
    """One file as its own header describes it; not authenticated yet."""

    uri: str
    parameters: SealedParameters
    entries: list[TensorEntry]
    tags: TensorEntry
    hidden: TensorEntry | None
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, catalog: Catalog, number: int, parameters: SealedParameters) -> _OuterFile:
        uri, metadata = catalog.shards[number].uri, catalog.header_metadata[number]
        entries = sorted(
            (each.entry for each in catalog.tensors.values() if each.shard == number),
            key=lambda entry: (entry.begin, entry.end),
        )
        names = [
            tensor_name(kind, parameters.shard, parameters.shards)
            for kind in (HEADER_TENSOR, PAYLOAD_TENSOR, TAGS_TENSOR)
        ]
        found = [entry.name for entry in entries]
        is_right = found == names if parameters.hides_names else found[-1:] == names[-1:]
        if not is_right or entries[-1].dtype != "U8":
            raise TamperedError("the encrypted file does not have its tags, or other tensors", uri=uri, hint=_HINT)
        hidden = entries[0] if parameters.hides_names else None
        file = cls(uri, parameters, entries[:-1], entries[-1], hidden, metadata)
        file.check_sizes()
        return file

    def check_sizes(self) -> None:
        """Check the sizes of the ranges that are read before the header is authenticated."""
        tags_bytes, piece_bytes = self.tags.end - self.tags.begin, self.parameters.piece_bytes
        if self.hidden is None:
            pieces = sum(-(-each.end // piece_bytes) - each.begin // piece_bytes for each in self._filled())
            is_right = tags_bytes == TAG_BYTES * (1 + pieces)
        else:
            header_bytes = self.hidden.end - self.hidden.begin
            most_pieces = (self.tags.begin - self.hidden.begin) // piece_bytes + header_bytes // LEAST_ENTRY_BYTES + 4
            is_right = TAG_BYTES <= tags_bytes <= TAG_BYTES * most_pieces and 8 < header_bytes <= MAX_JSON_BYTES + 16
        if not is_right:
            raise TamperedError("the encrypted file has another number of tags", uri=self.uri, hint=_HINT)

    def _filled(self) -> list[TensorEntry]:
        return [each for each in self.entries if each.begin < each.end]

    def to_read(self) -> list[TensorEntry]:
        """Return the tensors that `opened` needs, in the order of their bytes."""
        return [self.tags] if self.hidden is None else [self.hidden, self.tags]

    def opened(self, key: SecretKey, header: bytes, tags: memoryview, hidden: memoryview | None) -> _Opened:
        """Authenticate the header, and read the hidden one if there is any."""
        if self.hidden is None or hidden is None:
            file = sealed_file(key, self.parameters, header=header, tags=tags, entries=self.entries, uri=self.uri)
            metadata = {name: text for name, text in self.metadata.items() if name != ENCRYPTION_METADATA}
            return _Opened(file, self.entries, metadata)
        outer = sealed_file(key, self.parameters, header=header, tags=tags, entries=[self.hidden], uri=self.uri)
        inner_bytes = outer.decrypted(hidden, self.hidden.begin, self.uri)
        payload = self.entries[1]
        size_bytes = len(inner_bytes) + payload.end - payload.begin
        inner = parse_header(inner_bytes, size_bytes, uri=self.uri)
        moved = payload.begin - inner.data_begin
        entries = [each._replace(begin=each.begin + moved, end=each.end + moved) for each in inner.entries]
        all_entries = [self.hidden, *entries]
        file = sealed_file(key, self.parameters, header=header, tags=tags, entries=all_entries, uri=self.uri)
        if file.piece_count * TAG_BYTES != len(tags):
            raise TamperedError("the encrypted file has another number of tags", uri=self.uri, hint=_HINT)
        return _Opened(file, entries, inner.metadata or {})


def with_whole_pieces(catalog: Catalog, wanted: list[ShardTensor]) -> list[ShardTensor]:
    """Widen parts of encrypted tensors to whole pieces, out of which the parts are cut."""
    if not catalog.sealed:
        return wanted
    return [_with_whole_pieces(catalog.sealed[each.shard], each) for each in wanted]


def _with_whole_pieces(file: SealedFile, wanted: ShardTensor) -> ShardTensor:
    entry = wanted.entry
    if file.first_piece(entry.begin, entry.end) is not None:
        return wanted
    bits = bits_of(entry.dtype)
    begin, end = file.whole_pieces(entry.begin, entry.end)
    if (entry.begin - begin) * 8 % bits or (end - begin) * 8 % bits:  # 6-bit elements may lie across pieces
        begin, end = file.tensor_range(entry.begin)
    first, count = (entry.begin - begin) * 8 // bits, (end - begin) * 8 // bits
    whole = tuple(entry.shape)
    cut = wanted.cut._replace(first=wanted.cut.first + first) if wanted.cut else Cut(whole, whole, first, whole)
    return wanted._replace(entry=entry._replace(shape=(count,), begin=begin, end=end), cut=cut)


def seal_plan(catalog: Catalog, plan: ReadPlan) -> _native.SealPlan | None:
    """Return what the engine needs to decrypt the items of a plan; None if nothing is encrypted."""
    if not catalog.sealed:
        return None
    seals = _native.SealPlan()
    file_of = {}
    for position, (shard, file) in enumerate(catalog.sealed.items()):
        seals.add_file(file.cipher, file.tags)
        file_of[shard] = position
    for source, begin, end, _, _ in plan.item_rows():
        first = catalog.sealed[source].first_piece(begin, end)
        if first is None:
            raise UsageError(
                "a target takes a part of an encrypted tensor in place, which begins or ends inside of a piece",
                uri=catalog.shards[source].uri,
                hint="Load the part with slices=, or the whole tensor, and copy it",
            )
        seals.add_item(file_of[source], first)
    return seals
