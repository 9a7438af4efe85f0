"""The behaviour of every format as a test suite; our formats run it, and yours should run it, too.

Subclass `FormatContract` in a test module, name the format and some samples, and run pytest:

    from streamer.plugins.contract import FormatContract, Sample

    class TestAcme(FormatContract):
        format = acme.AcmeFormat()

        def samples(self):
            array = numpy.arange(12, dtype="f4").reshape(3, 4)
            return [Sample({"model.acme": acme.dumps({"w": array})}, {"w": array})]

Files are in memory, so the suite tests the parser alone. Needs pytest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

from streamer.core.encryption.keys import KeyOption, KeySource
from streamer.core.errors import EncryptionKeyError, FormatError, TruncatedError
from streamer.core.format.dtypes import byte_length
from streamer.core.other_formats.interface import HEAD_BYTES, BytesFile, CheckpointIndex, Format, TensorPlace
from streamer.plugins.contract.storage import rule

if TYPE_CHECKING:
    from streamer.core.other_formats.interface import EncryptedFormat

MUTATIONS = 300  # of each sample; a quarter of a second
FOREIGN = (b"", b"\0" * HEAD_BYTES, b"\x02\0\0\0\0\0\0\0{}", b"<!doctype html>", b"version https://git-lfs")


@dataclass(frozen=True)
class Sample:
    """A checkpoint and its content."""

    # The bytes of each file of a folder, by name. Other files may lie among them.
    files: Mapping[str, bytes]
    # Arrays by name: the content as the format's own library reads it. Their bytes are compared, so arrays of bytes
    # stand for dtypes that numpy lacks.
    tensors: Mapping[str, Any]


class FormatContract:
    """The suite. A subclass whose name starts with ``Test`` is collected by pytest."""

    format: Format
    key: KeyOption = None  # what the samples are encrypted with; for formats of this package alone

    def samples(self) -> Sequence[Sample]:
        """Return checkpoints that together use everything that the format can hold."""
        raise NotImplementedError

    @rule
    def test_its_files_are_chosen_and_recognised(self) -> None:
        """`files_of` chooses files with its suffixes; `is_format` recognises one of them by its beginning."""
        for sample in self.samples():
            chosen = self._chosen(sample)
            assert chosen, f"files_of chose none of {sorted(sample.files)}"
            assert all(name.endswith(self.format.suffixes) for name in chosen), chosen
            assert len({*chosen}) == len(chosen), f"files_of chose a file twice: {chosen}"
            heads = [sample.files[name][:HEAD_BYTES] for name in chosen]
            assert any(self.format.is_format(head) for head in heads), f"is_format recognises none of {chosen}"

    @rule
    def test_nothing_else_is_recognised(self) -> None:
        """`is_format` recognises no safetensors, no text, no zeros; `files_of` chooses nothing from an empty folder."""
        assert not [head for head in FOREIGN if self.format.is_format(head)]
        assert not self.format.files_of([])

    @rule
    def test_every_tensor_has_its_bytes(self) -> None:
        """`read_index` finds every tensor once, with its shape; its place has its bytes."""
        for sample in self.samples():
            index = self._index(sample.files, self._chosen(sample))
            names = [each.name for each in index.tensors]
            assert sorted(names) == sorted(sample.tensors), f"read_index found other tensors: {sorted(names)[:10]}"
            for each in index.tensors:
                expected = sample.tensors[each.name]
                assert _bytes_of(each) == expected.tobytes(), f"tensor {each.name} has wrong bytes"
                assert each.dtype == "F4" or expected.itemsize * expected.size == byte_length(each.shape, each.dtype)

    @rule
    def test_any_part_can_be_read_from_any_thread(self) -> None:
        """A reader gives the same bytes at any offset, in any order, to several threads."""
        random = Random(7)  # noqa: S311 (places, no secrets)
        for sample in self.samples():
            for each in self._index(sample.files, self._chosen(sample)).tensors:
                whole, size = _bytes_of(each), byte_length(each.shape, each.dtype)
                cuts = sorted({0, size, *(random.randrange(size + 1) for _ in range(6))})
                parts = [(begin, end) for begin in cuts for end in cuts if begin < end]
                random.shuffle(parts)
                with ThreadPoolExecutor(4) as pool:
                    read = list(pool.map(lambda part, each=each: _bytes_of(each, *part), parts))
                wrong = [part for part, got in zip(parts, read, strict=True) if got != whole[slice(*part)]]
                assert not wrong, f"bytes {wrong[0]} of tensor {each.name} differ"

    @rule
    def test_the_metadata_is_text(self) -> None:
        """The metadata maps texts to texts."""
        for sample in self.samples():
            metadata = self._index(sample.files, self._chosen(sample)).metadata
            assert all(isinstance(each, str) for pair in metadata.items() for each in pair), metadata

    @rule
    def test_malformed_files_are_refused(self) -> None:
        """A file with other bytes, or that is cut short, is read or refused with FormatError or TruncatedError."""
        random = Random(11)  # noqa: S311 (bytes, no secrets)
        for sample in self.samples():
            chosen = self._chosen(sample)
            for number in range(MUTATIONS):
                name = random.choice(chosen)
                data = bytearray(sample.files[name])
                if number % 4 and data:
                    for _ in range(random.randrange(1, 4)):
                        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
                else:
                    del data[random.randrange(len(data) + 1) :]
                self._check_refused({**sample.files, name: bytes(data)}, chosen)

    def _check_refused(self, files: Mapping[str, bytes], chosen: Sequence[str]) -> None:
        try:
            for each in self._index(files, chosen).tensors:
                if byte_length(each.shape, each.dtype) <= 1 << 20:
                    _bytes_of(each)
        except (FormatError, TruncatedError, EncryptionKeyError):
            return

    def _chosen(self, sample: Sample) -> list[str]:
        return list(self.format.files_of([name for name in sample.files if name.endswith(self.format.suffixes)]))

    def _index(self, files: Mapping[str, bytes], chosen: Sequence[str]) -> CheckpointIndex:
        opened = [BytesFile(files[name], name, f"memory://{name}") for name in chosen]
        if self.key is None:
            return self.format.read_index(opened)
        return cast("EncryptedFormat", self.format).read_encrypted_index(opened, KeySource(self.key))


def _bytes_of(place: TensorPlace, begin: int = 0, end: int | None = None) -> bytes:
    """Read bytes of a tensor, by default all."""
    size_bytes = byte_length(place.shape, place.dtype)
    buffer = bytearray((size_bytes if end is None else end) - begin)
    reader = place.reader or place.file
    if place.begin + size_bytes > reader.size_bytes and size_bytes:
        raise FormatError(f"tensor {place.name} ends after its file")  # a load checks the same
    if buffer:
        reader.read_into(memoryview(buffer), place.begin + begin)
    return bytes(buffer)
