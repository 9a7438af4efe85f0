"""Encrypted files of Tensorizer: equal to its own reader, and nothing that was changed is handed out."""

from __future__ import annotations

import builtins
import struct
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from servers.seaweedfs import SeaweedServer
from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer
from tensorizer_files import KEY, derived, file_of, hashed, sealed

import streamer
from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.secret_keys import SecretKey
from streamer.core.errors import EncryptionKeyError, FormatError, TamperedError, TruncatedError, UsageError
from streamer.core.other_formats.interface import BytesFile
from streamer.core.other_formats.tensorizer import Tensorizer
from streamer.core.other_formats.tensorizer_decryption import DecryptedTensor
from streamer.core.other_formats.tensorizer_header import parsed_header
from streamer.plugins.contract import FormatContract, Sample

OTHER = bytes(range(1, 33))
WORDS = "correct horse battery staple"


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "large": torch.randn(1031, 1307, generator=generator),  # three chunks of Tensorizer, the last with odd bytes
        "bf16": torch.arange(5).bfloat16(),
        "f8": torch.arange(4).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "flag": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
    }


def write(path: Path, encryption: EncryptionParams) -> None:
    serializer = TensorSerializer(str(path), encryption=encryption)
    # Tensorizer refuses to encrypt a tensor without elements.
    serializer.write_state_dict({name: each for name, each in tensors().items() if each.numel()})
    serializer.close()


def by_passphrase() -> EncryptionParams:
    cheap = {"opslimit": EncryptionParams.OpsLimit.MIN, "memlimit": EncryptionParams.MemLimit.MIN}
    return EncryptionParams.from_string(WORDS, **cheap)


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(5)
    return {
        "w": random.standard_normal((40, 33)).astype("f4"),  # six chunks of 1024 bytes
        "same": random.standard_normal((40, 33)).astype("f4"),
        "small": np.arange(3, dtype="i8"),
    }


def sealed_arrays(**parts: Any) -> list[Any]:
    return [sealed(name, each, **parts) for name, each in arrays().items()]


def in_one_box(name: str, array: np.ndarray[Any, Any]) -> Any:
    made = sealed(name, array, chunk_bytes=1 << 20)
    return hashed(replace(made, cipher=struct.pack("<H", 3) + made.nonce + made.macs[0]), array.tobytes())


class TestEncryptedTensorizer(FormatContract):
    format = Tensorizer()
    key = KEY

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def samples(self) -> Sequence[Sample]:
        write(self.folder / "x.tensors", EncryptionParams(KEY))
        saved = {name: each for name, each in tensors().items() if each.numel()}
        bytes_of = {name: each.contiguous().reshape(-1).view(torch.uint8).numpy() for name, each in saved.items()}
        sequential = [in_one_box(name, each) for name, each in arrays().items()]
        return [
            Sample({"x.tensors": (self.folder / "x.tensors").read_bytes()}, bytes_of),
            Sample({"x.tensors": file_of(sealed_arrays())}, arrays()),
            Sample({"x.tensors": file_of(sequential)}, arrays()),
        ]


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return a function that gives the arguments of a load of ``x.tensors``, after an upload."""

    def arguments() -> dict[str, Any]:
        if request.param == "disk":
            return {"uri": str(tmp_path)}
        server: SeaweedServer = request.getfixturevalue("s3_server")
        server.put("private", f"tensorizer/{tmp_path.name}/x.tensors", (tmp_path / "x.tensors").read_bytes())
        return {"uri": f"s3://private/tensorizer/{tmp_path.name}", "storage_options": server.storage_options()}

    return arguments


@pytest.mark.parametrize("how", ["key", "passphrase", "key of a passphrase"])
def test_tensors_equal_those_of_tensorizer(tmp_path: Path, place: Callable[[], dict[str, Any]], how: str) -> None:
    encryption = EncryptionParams(KEY) if how == "key" else by_passphrase()
    write(tmp_path / "x.tensors", encryption)
    key = streamer.Passphrase(WORDS) if how == "passphrase" else encryption.key
    decryption = DecryptionParams.from_key(encryption.key)
    loaded = streamer.load(**place(), key=key)
    with TensorDeserializer(str(tmp_path / "x.tensors"), device="cpu", encryption=decryption) as expected:
        assert loaded.keys() == expected.keys()
        for name, tensor in expected.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(loaded[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_the_files_of_the_tests_are_tensorizers(tmp_path: Path) -> None:
    (tmp_path / "x.tensors").write_bytes(file_of(sealed_arrays()))
    decryption = DecryptionParams.from_key(KEY)
    with TensorDeserializer(str(tmp_path / "x.tensors"), device="cpu", encryption=decryption, verify_hash=True) as read:
        assert all(torch.equal(read[name], torch.from_numpy(each)) for name, each in arrays().items())


def test_an_encrypted_file_is_streamed_sliced_opened_and_filled(
    tmp_path: Path, place: Callable[[], dict[str, Any]]
) -> None:
    write(tmp_path / "x.tensors", EncryptionParams(KEY))
    how, large = {**place(), "key": KEY}, tensors()["large"]
    options = streamer.Options(memory_limit_bytes=1 << 20, block_bytes=512 << 10)  # chunks are larger than blocks
    with streamer.stream(**how, options=options) as stream:
        assert torch.equal(dict(stream)["large"], large)
    sliced = streamer.load(**how, names=["large"], slices={"large": streamer.Slice(1, 1, 2)})
    assert torch.equal(sliced["large"], large[:, 654:])
    with streamer.open(**how) as checkpoint:
        assert torch.equal(checkpoint["large"][500:502], large[500:502])
        assert torch.equal(checkpoint["large"][...], large)
    target = {name: torch.zeros_like(each) for name, each in tensors().items() if each.numel()}
    streamer.load_into(target=target, **how)
    assert torch.equal(target["large"], large)


def attack_swapped_chunks() -> list[Any]:
    first, *rest = sealed_arrays()
    moved = first.data[1024:2048] + first.data[:1024] + first.data[2048:]
    return [replace(first, data=moved, macs=(first.macs[1], first.macs[0], *first.macs[2:])), *rest]


def attack_swapped_tensors() -> list[Any]:
    first, second, *rest = sealed_arrays()
    names = ("nonce", "macs", "data")
    one = replace(first, **{name: getattr(second, name) for name in names})
    other = replace(second, **{name: getattr(first, name) for name in names})
    return [one, other, *rest]


def changed(**parts: Callable[[Any], Any]) -> Callable[[], list[Any]]:
    """Return a function that changes parts of the first tensor."""

    def attack() -> list[Any]:
        first, *rest = sealed_arrays()
        return [replace(first, **{name: change(first) for name, change in parts.items()}), *rest]

    return attack


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# No SHA-256 of the header and the tensor, which would notice these, can be made without the tensor.
ATTACKS: dict[str, Callable[[], list[Any]]] = {
    "a bit of the first chunk": changed(data=lambda one: flipped(one.data, 0)),
    "a bit of the last chunk": changed(data=lambda one: flipped(one.data, len(one.data) - 1)),
    "a bit of a MAC": changed(macs=lambda one: (*one.macs[:-1], flipped(one.macs[-1], 3))),
    "a bit of the nonce": changed(nonce=lambda one: flipped(one.nonce, 2)),
    "swapped chunks": attack_swapped_chunks,
    "swapped tensors of one shape": attack_swapped_tensors,
    "a chunk that is there twice": changed(data=lambda one: one.data[:1024] * 2 + one.data[2048:]),
    "another name": changed(name=lambda one: b"v"),
    "another name in the index": changed(named=lambda one: b"v"),
    "another shape": changed(shape=lambda one: one.shape[::-1]),
    "another dtype": changed(dtype=lambda one: b"<i4"),
    "no hash": changed(hashes=lambda one: b"\0"),
    "no SHA-256": changed(hashes=lambda one: b"\1" + one.hashes[1:7]),
    "another SHA-256": changed(hashes=lambda one: flipped(one.hashes, 20)),
    "another CRC-32": changed(hashes=lambda one: flipped(one.hashes, 4)),
    "a tensor that is not encrypted": changed(cipher=lambda one: b"", data=lambda one: bytes(len(one.data))),
    "a tensor of another key": lambda: [*sealed_arrays(), sealed("b", np.ones(900, "f4"), key=OTHER)],
}


@each_row("what", ATTACKS)
def test_what_was_changed_is_noticed(tmp_path: Path, what: str) -> None:
    (tmp_path / "x.tensors").write_bytes(file_of(ATTACKS[what]()))
    got: list[str] = []
    with pytest.raises(TamperedError) as caught, streamer.stream(tmp_path, key=KEY) as stream:  # noqa: PT012
        for name, _ in stream:
            got.append(name)
    changed_names = {"b"} if what == "a tensor of another key" else {"w", "v"}  # there, the others are as they were
    assert not changed_names & {*got}
    assert "x.tensors" in str(caught.value)


HOSTILE: dict[str, Callable[[], list[Any]]] = {
    "chunks of exabytes": changed(chunk_bytes=lambda one: 1 << 62),
    "chunks of no bytes": changed(chunk_bytes=lambda one: 0),
    "chunks of odd bytes": changed(chunk_bytes=lambda one: 1025),
    "a MAC too few": changed(macs=lambda one: one.macs[1:]),
    "an entry that is cut short": changed(cipher=lambda one: struct.pack("<HQ24sQ", 2, 1024, one.nonce, 1 << 60)),
    "an unknown cipher": changed(cipher=lambda one: struct.pack("<H", 9)),
    "an empty entry": changed(derivation=lambda one: b"\1"),
    "two derivations": lambda: [
        sealed("w", np.ones(2, "f4"), derivation=derived("a")[1]),
        sealed("v", np.ones(2, "f4")),
    ],
    "a derivation of a terabyte": lambda: costly(memory_bytes=1 << 40),
    "a derivation of hours": lambda: costly(passes=1 << 31),
    "a derivation below the least": lambda: costly(memory_bytes=1),
    "an unknown derivation": lambda: costly(algorithm=1),
    "a hash of an unknown kind": changed(hashes=lambda one: b"\1\7\0"),
    "a hash behind its block": changed(hashes=lambda one: b"\2" + one.hashes[1:7]),
}


def costly(passes: int = 1, memory_bytes: int = 8192, algorithm: int = 2) -> list[Any]:
    entry = struct.pack("<HHQQiH", 1, 1, passes, memory_bytes, algorithm, 16) + bytes(16)
    return [sealed("w", np.ones(2, "f4"), derivation=entry)]


@each_row("what", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "x.tensors").write_bytes(file_of(HOSTILE[what]()))
    with pytest.raises((FormatError, TruncatedError)) as caught:
        streamer.open(tmp_path, key=streamer.Passphrase(WORDS))
    assert "x.tensors" in str(caught.value)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = file_of(sealed_arrays())
    for size in (len(whole) - 1, len(whole) - 30, len(whole) // 2, 300, 80):
        (tmp_path / "x.tensors").write_bytes(whole[:size])
        with pytest.raises((FormatError, TruncatedError)):
            streamer.load(tmp_path, key=KEY)


def test_another_key_is_noticed_before_a_tensor_is_read(tmp_path: Path) -> None:
    write(tmp_path / "x.tensors", by_passphrase())
    for key in (OTHER, streamer.Passphrase("another")):
        with pytest.raises(TamperedError, match=r"or the key is another one.*Give the key with which it was saved"):
            streamer.open(tmp_path, key=key)


def test_a_key_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    write(tmp_path / "x.tensors", EncryptionParams(KEY))
    with pytest.raises(EncryptionKeyError, match=r"encrypted by Tensorizer, and no key is given\. Give key="):
        streamer.load(tmp_path)
    with pytest.raises(EncryptionKeyError, match="encrypted with a key, not with a passphrase"):
        streamer.load(tmp_path, key=streamer.Passphrase(WORDS))
    with pytest.raises(EncryptionKeyError, match="has 5 bytes, not 32"):
        streamer.load(tmp_path, key=b"short")
    with pytest.raises(EncryptionKeyError, match="hold no key that a key service wrapped"):
        streamer.load(tmp_path, key=Service())


class Service:
    def new_key(self) -> streamer.DataKey:
        raise AssertionError

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        raise AssertionError


def test_an_unencrypted_file_is_refused_if_a_key_is_passed(tmp_path: Path) -> None:
    serializer = TensorSerializer(str(tmp_path / "x.tensors"))
    serializer.write_state_dict({"w": torch.ones(2)})
    serializer.close()
    with pytest.raises(TamperedError, match="a key is given, and the file is not encrypted"):
        streamer.load(tmp_path, key=KEY)


def test_a_passphrase_opens_no_checkpoint_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EncryptionKeyError, match="a passphrase opens files of Tensorizer only"):
        streamer.save({"w": torch.ones(2)}, tmp_path / "new", key=streamer.Passphrase(WORDS))
    streamer.save({"w": torch.ones(2)}, tmp_path / "old", key=KEY)
    with pytest.raises(EncryptionKeyError, match="a passphrase opens files of Tensorizer only"):
        streamer.load(tmp_path / "old", key=streamer.Passphrase(WORDS))


@pytest.mark.parametrize("text", ["", b"", 7])
def test_a_passphrase_is_a_text(text: Any) -> None:
    with pytest.raises(EncryptionKeyError, match="passphrase is"):
        streamer.Passphrase(text)


def test_no_text_shows_a_passphrase() -> None:
    assert WORDS not in repr(streamer.Passphrase(WORDS)) + repr(KeySource(streamer.Passphrase(WORDS)))


def test_without_pynacl_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.tensors", EncryptionParams(KEY))
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "nacl":
            raise ModuleNotFoundError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"PyNaCl.*is not installed\. Install the extra streamer\[tensorizer\]"):
        streamer.load(tmp_path, key=KEY)


def reader_of(array: np.ndarray[Any, Any], change: Callable[[Any], Any] = lambda made: made) -> DecryptedTensor:
    """Return the reader of one encrypted array."""
    made = change(sealed("w", array))
    header = parsed_header(made.header(), is_long=False)
    assert header.chunks is not None
    return DecryptedTensor(BytesFile(made.data), 0, header, header.chunks, SecretKey(KEY))


def read(reader: DecryptedTensor, begin: int, end: int) -> bytes:
    buffer = bytearray(end - begin)
    reader.read_into(memoryview(buffer), begin)
    return bytes(buffer)


ARRAY = np.random.default_rng(1).integers(0, 256, 10_001, "u1")


def other_hash(made: Any) -> Any:
    return hashed(made, b"another tensor")


@pytest.mark.parametrize("seed", range(5))
def test_the_hash_is_compared_in_whatever_order_a_tensor_is_read(seed: int) -> None:
    random = Random(seed)
    cuts = sorted({0, ARRAY.size, *random.sample(range(ARRAY.size), 7)})
    parts = list(pairwise(cuts))
    random.shuffle(parts)
    right, wrong = reader_of(ARRAY), reader_of(ARRAY, other_hash)
    for begin, end in [*parts, parts[0]]:
        assert read(right, begin, end) == ARRAY[begin:end].tobytes()
    for begin, end in parts[:-1]:
        assert read(wrong, begin, end) == ARRAY[begin:end].tobytes()  # a part is authenticated by its chunks
    for begin, end in (parts[-1], parts[0]):  # and from then on every part is refused
        with pytest.raises(TamperedError, match="the name, the shape or a byte"):
            read(wrong, begin, end)


def test_the_hash_is_compared_if_several_threads_read() -> None:
    for change, is_right in ((lambda made: made, True), (other_hash, False)):
        reader, failed = reader_of(ARRAY, change), []

        def run(begin: int, reader: DecryptedTensor = reader, failed: list[int] = failed) -> None:
            try:
                read(reader, begin, min(begin + 700, ARRAY.size))
            except TamperedError:
                failed.append(begin)

        threads = [threading.Thread(target=run, args=(begin,)) for begin in range(0, ARRAY.size, 700)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bool(failed) is not is_right


def test_a_chunk_that_was_damaged_on_the_way_is_read_again() -> None:
    made = sealed("w", ARRAY)
    header = parsed_header(made.header(), is_long=False)
    assert header.chunks is not None

    class Damaging(BytesFile):
        reads = 0

        def read_into(self, buffer: memoryview, offset: int) -> None:
            super().read_into(buffer, offset)
            self.reads += 1
            if self.reads == 1:
                buffer[2000] ^= 1

    file = Damaging(made.data)
    reader = DecryptedTensor(file, 0, header, header.chunks, SecretKey(KEY))
    assert read(reader, 0, ARRAY.size) == ARRAY.tobytes()
    assert file.reads == 2


def test_a_reader_holds_chunks_and_no_tensor() -> None:
    array = np.zeros(32 << 20, "u1")
    made = sealed("w", array, chunk_bytes=1 << 20)
    header = parsed_header(made.header(), is_long=False)
    assert header.chunks is not None
    reader = DecryptedTensor(BytesFile(made.data), 0, header, header.chunks, SecretKey(KEY))
    block = memoryview(bytearray(4 << 20))
    tracemalloc.start()
    try:
        for offset in reversed(range(0, array.size, len(block))):  # so that all is hashed again at the end
            reader.read_into(block, offset)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
