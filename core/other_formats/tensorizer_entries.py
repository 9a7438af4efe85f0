"""The tensors of one file of Tensorizer, and the checks of an encrypted one against the header of each tensor.

Guarantees: in an encrypted file every tensor with data is encrypted, all of them with one key, and the header of each
repeats the name, dtype, shape and size in the index. The key is tried on the smallest tensor, so that another key is
noticed before a load begins. Neither Tensorizer nor this module can notice a tensor that was removed from the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.secret_keys import Passphrase, SecretKey
from streamer.core.errors import EncryptionKeyError, FormatError, TamperedError
from streamer.core.other_formats.interface import MOST_READ_BYTES, CheckpointFile, TensorPlace
from streamer.core.other_formats.tensorizer_decryption import DecryptedTensor, derived_key
from streamer.core.other_formats.tensorizer_header import SHA256, TensorHeader, parsed_header
from streamer.core.quoting import quoted

_HINT = "Do not use it; get it again from where it was saved"


class Entry(NamedTuple):
    """A tensor as the index of its file describes it."""

    name: str
    dtype: str  # as of a `TensorPlace`
    shape: tuple[int, ...]  # dimensions
    begin: int  # offset of its data
    size_bytes: int  # size of its data
    stored_name: bytes  # the name as it is stored
    stored_dtype: bytes  # the dtype as it is stored
    header_begin: int  # offset of its header, which ends where its data begins
    is_long: bool  # whether its dimensions have eight bytes

    def place(self, file: CheckpointFile) -> TensorPlace:
        """Return the place of a tensor that is not encrypted."""
        return TensorPlace(self.name, self.dtype, self.shape, file, self.begin)


def encrypted_places(file: CheckpointFile, entries: Sequence[Entry], key: KeySource) -> list[TensorPlace]:
    """Read the headers of the tensors of an encrypted file."""
    found = list(zip(entries, _headers(file, entries), strict=True))
    secret = _secret(key.of_format("Tensorizer"), [header for _, header in found], file)
    places = []
    readers = []
    for entry, header in found:
        if header.chunks is None:
            places.append(entry.place(file))
            continue
        readers.append(DecryptedTensor(file, entry.begin, header, header.chunks, secret))
        places.append(TensorPlace(entry.name, entry.dtype, entry.shape, file, 0, readers[-1]))
    if not readers:
        what = "the file has no encrypted bytes, so the key authenticates nothing of it"
        raise TamperedError(what, uri=file.uri, hint=_HINT)
    min(readers, key=lambda reader: reader.size_bytes).check_first_chunk()
    return places


def _headers(file: CheckpointFile, entries: Sequence[Entry]) -> Iterator[TensorHeader]:
    """Read all headers, as many at a time as one read may have."""
    spans = [(entry.header_begin, entry.begin) for entry in entries]
    for first, last in pairwise(_batches(spans)):
        for entry, data in zip(entries[first:last], file.read_ranges(spans[first:last]), strict=True):
            yield _checked(file, entry, parsed_header(data, is_long=entry.is_long))


def _batches(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of the spans with which a read begins, and their count."""
    starts, total = [0], 0
    for number, (begin, end) in enumerate(spans):
        total += end - begin
        if total > MOST_READ_BYTES and number > starts[-1]:
            starts.append(number)
            total = end - begin
    return [*starts, len(spans)]


def _checked(file: CheckpointFile, entry: Entry, header: TensorHeader) -> TensorHeader:
    described = (header.name, header.dtype, header.shape, header.data_bytes)
    what = None
    if described != (entry.stored_name, entry.stored_dtype, entry.shape, entry.size_bytes):
        what = "has a header of another tensor"
    elif entry.size_bytes and header.chunks is None:
        what = "is not encrypted, as the others are"
    elif header.chunks is not None and all(kind != SHA256 for kind, _ in header.hashes):
        what = "has no SHA-256, which Tensorizer writes for each"
    if what is not None:
        raise TamperedError(f"tensor {quoted(entry.name)} {what}", uri=file.uri, hint=_HINT)
    return header


def _secret(key: SecretKey | Passphrase, headers: Sequence[TensorHeader], file: CheckpointFile) -> SecretKey:
    """Return the key of the file; it is derived once, for that may take seconds."""
    if isinstance(key, SecretKey):
        return key
    derivations = {header.derivation for header in headers if header.chunks is not None}
    if len(derivations) > 1:
        raise FormatError("the keys of its tensors were derived in several ways")
    derivation = next(iter(derivations), None)
    if derivation is not None:
        return derived_key(key, derivation)
    if derivations:
        hint = "Give the key itself: its bytes, a path, or env:NAME"
        raise EncryptionKeyError("this file was encrypted with a key, not with a passphrase", uri=file.uri, hint=hint)
    return SecretKey(b"")  # no tensor has data
