"""Whoever can write the storage, and has no key, can make a load fail; never make it hand out other tensors.

Each attack changes the files of an encrypted checkpoint. Every tensor that is handed out before the error is compared.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from encryption_reference import divided

import streamer

KEY = bytes(range(32))
PIECE = 256 << 10
ROWS = 3 * PIECE // 4 // 64  # three pieces of F32, which are cut in the file
TENSORS = {
    "a.one": torch.arange(ROWS * 64, dtype=torch.float32).reshape(ROWS, 64),
    "a.two": -torch.arange(ROWS * 64, dtype=torch.float32).reshape(ROWS, 64),
    "b.one": torch.arange(ROWS * 64, dtype=torch.float32).reshape(ROWS, 64) / 3,
    "b.two": torch.ones(ROWS, 64),
}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


class Saved(NamedTuple):
    """A checkpoint of two files, the same with hidden names, and another save of the same tensors."""

    open: Path
    hidden: Path
    other: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("encrypted")
    places = Saved(folder / "open", folder / "hidden", folder / "other")
    size = sum(each.nbytes for each in TENSORS.values()) // 2
    for place in places:
        other = {name: each + 1 for name, each in TENSORS.items()} if place is places.other else TENSORS
        streamer.save(other, place, key=KEY, max_shard_bytes=size, hide_names=place is places.hidden)
    assert sorted(path.name for path in places.open.glob("*.safetensors")) == SHARDS
    return places


# --- attacks on one file: bytes in, bytes out ---


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Change the document of the header; its length stays."""
    outer = divided(data)
    change(outer.document)
    text = json.dumps(outer.document, separators=(",", ":")).encode()
    text = text.ljust(len(outer.header) - 8)
    return len(text).to_bytes(8, "little") + text + data[len(outer.header) :]


def with_parameter(name: str, value: Any) -> Callable[[bytes], bytes]:
    def change(document: dict[str, Any]) -> None:
        parameters = json.loads(document["__metadata__"]["streamer.encryption"])
        parameters[name] = value
        document["__metadata__"]["streamer.encryption"] = json.dumps(parameters, separators=(",", ":"))

    return lambda data: with_header(data, change)


def flipped(position: Callable[[bytes], int]) -> Callable[[bytes], bytes]:
    def attack(data: bytes) -> bytes:
        at = position(data)
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return attack


def begin_of(tensor: int) -> Callable[[bytes], int]:
    return lambda data: divided(data).tensors[tensor][1]


def end_of(tensor: int) -> Callable[[bytes], int]:
    return lambda data: divided(data).tensors[tensor][2] - 1


def moved(data: bytes, source: tuple[int, int], begin: int) -> bytes:
    part = data[source[0] : source[1]]
    return data[:begin] + part + data[begin + len(part) :]


def whole_pieces(data: bytes) -> list[tuple[int, int]]:
    (_, begin, _), *_ = divided(data).tensors
    first = -(-begin // PIECE) * PIECE
    return [(first, first + PIECE), (first + PIECE, first + 2 * PIECE)]


def swapped_pieces(data: bytes) -> bytes:
    one, two = whole_pieces(data)
    return moved(moved(data, one, two[0]), two, one[0])


def swapped_tensors(data: bytes) -> bytes:
    (_, *one), (_, *two), _ = divided(data).tensors
    return moved(moved(data, (one[0], one[1]), two[0]), (two[0], two[1]), one[0])


def swapped_tags(data: bytes) -> bytes:
    begin = begin_of(-1)(data)
    return moved(moved(data, (begin + 16, begin + 32), begin + 32), (begin + 32, begin + 48), begin + 16)


def swapped_names(document: dict[str, Any]) -> None:
    one, two = [name for name in document if name[1:2] == "."]
    document[one], document[two] = document[two], document[one]


def renamed(document: dict[str, Any]) -> None:
    name = next(name for name in document if name[1:2] == ".")
    document[f"x{name[1:]}"] = document.pop(name)


def tensor_of(document: dict[str, Any]) -> dict[str, Any]:
    return next(value for name, value in document.items() if name[1:2] == ".")


def without_last_tensor(document: dict[str, Any]) -> None:
    one, two = [name for name in document if name[1:2] == "."]
    begin, end = document[one]["data_offsets"][0], document[two]["data_offsets"][1]
    document[one] = {"dtype": "F32", "shape": [2 * ROWS, 64], "data_offsets": [begin, end]}
    del document[two]


def split_tensor(document: dict[str, Any]) -> None:
    name = next(name for name in document if name[1:2] == ".")
    begin, end = document[name]["data_offsets"]
    middle = (begin + end) // 2 // 256 * 256
    document[name] = {"dtype": "F32", "shape": [(middle - begin) // 256, 64], "data_offsets": [begin, middle]}
    document["more"] = {"dtype": "F32", "shape": [(end - middle) // 256, 64], "data_offsets": [middle, end]}


def without_tags(data: bytes) -> bytes:
    outer = divided(data)
    (name, begin, _) = outer.tensors[-1]
    return with_header(data[:begin], lambda document: document.pop(name))


def fewer_tags(data: bytes) -> bytes:
    (name, begin, end) = divided(data).tensors[-1]

    def change(document: dict[str, Any]) -> None:
        first, last = document[name]["data_offsets"]
        document[name] = {"dtype": "U8", "shape": [end - begin - 16], "data_offsets": [first, last - 16]}

    return with_header(data[:-16], change)


def longer_header(data: bytes) -> bytes:
    outer = divided(data)
    text = outer.header[8:] + b" " * 8
    return len(text).to_bytes(8, "little") + text + data[len(outer.header) :]


def decrypted_parameters_gone(document: dict[str, Any]) -> None:
    del document["__metadata__"]["streamer.encryption"]


def reordered(document: dict[str, Any]) -> None:
    for name in sorted(document, reverse=True):
        document[name] = document.pop(name)


FILE_ATTACKS: dict[str, Callable[[bytes], bytes]] = {
    "a bit of the first byte": flipped(begin_of(0)),
    "a bit of the last byte of a tensor": flipped(end_of(0)),
    "a bit in the middle": flipped(lambda data: len(data) // 2),
    "a bit of the tag of the header": flipped(begin_of(-1)),
    "a bit of the tag of the last piece": flipped(end_of(-1)),
    "two pieces swapped": swapped_pieces,
    "a piece repeated": lambda data: moved(data, whole_pieces(data)[0], whole_pieces(data)[1][0]),
    "two tensors swapped": swapped_tensors,
    "two tags swapped": swapped_tags,
    "two pieces swapped with their tags": lambda data: swapped_tags(swapped_pieces(data)),
    "all data zero": lambda data: data[: begin_of(0)(data)] + bytes(len(data) - begin_of(0)(data)),
    "all tags zero": lambda data: data[: begin_of(-1)(data)] + bytes(len(data) - begin_of(-1)(data)),
    "the file cut short": lambda data: data[: len(data) // 2],
    "the last byte gone": lambda data: data[:-1],
    "a byte appended": lambda data: data + b"\0",
    "the tags gone": without_tags,
    "the last tag gone": fewer_tags,
    "the file empty": lambda _: b"",
    "a tensor renamed": lambda data: with_header(data, renamed),
    "the names of two tensors swapped": lambda data: with_header(data, swapped_names),
    "another dtype": lambda data: with_header(data, lambda document: tensor_of(document).update(dtype="I32")),
    "another shape": lambda data: with_header(data, lambda document: tensor_of(document)["shape"].reverse()),
    "two tensors made one": lambda data: with_header(data, without_last_tensor),
    "a tensor made two": lambda data: with_header(data, split_tensor),
    "the user's metadata changed": lambda data: with_header(
        data, lambda document: document["__metadata__"].update(format="np")
    ),
    "the header in another order": lambda data: with_header(data, reordered),
    "spaces after the header": longer_header,
    "a downgrade to plain": lambda data: with_header(data, decrypted_parameters_gone),
    "another salt": with_parameter("salt", "00" * 32),
    "a salt of no bytes": with_parameter("salt", ""),
    "another checkpoint": with_parameter("checkpoint", "00" * 16),
    "the number of the other file": with_parameter("shard", 2),
    "a number beyond all": with_parameter("shard", 3),
    "more files": with_parameter("shards", 3),
    "another piece size": with_parameter("piece_bytes", 128 << 10),
    "a piece size of zero": with_parameter("piece_bytes", 0),
    "a piece size that is no power of two": with_parameter("piece_bytes", 5000),
    "another key id": with_parameter("key_id", "0" * 16),
    "a wrapped key": with_parameter("wrapped_key", "AAAA"),
    "a later version": with_parameter("version", 2),
    "another cipher": with_parameter("cipher", "AES-128-GCM"),
    "no cipher": with_parameter("cipher", None),
    "hidden names that are not": with_parameter("hides_names", 1),
    "names said to be hidden": with_parameter("hides_names", True),
}


# --- attacks on the folder ---


def plain_file(folder: Path, _: Saved) -> None:
    wanted = {name: TENSORS[name] for name in json.loads((folder / INDEX).read_text())["weight_map"] if name in TENSORS}
    shutil.rmtree(folder)
    streamer.save(wanted, folder)


def plain_shard_beside(folder: Path, _: Saved) -> None:
    streamer.save({"more": torch.ones(3)}, folder / "more.safetensors")
    change_index(folder, lambda names: names.update(more="more.safetensors"))


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def swapped_shards(folder: Path, _: Saved) -> None:
    one, two = ((folder / name).read_bytes() for name in SHARDS)
    (folder / SHARDS[0]).write_bytes(two)
    (folder / SHARDS[1]).write_bytes(one)


def swapped_shards_without_index_of_one(folder: Path, saved: Saved) -> None:
    shutil.copy(folder / SHARDS[0], folder / SHARDS[1])
    (folder / INDEX).unlink()


def shard_of_other_save(folder: Path, saved: Saved) -> None:
    shutil.copy(saved.other / SHARDS[1], folder / SHARDS[1])


def data_of_other_save(folder: Path, saved: Saved) -> None:
    own, other = (folder / SHARDS[0]).read_bytes(), (saved.other / SHARDS[0]).read_bytes()
    (folder / SHARDS[0]).write_bytes(own[: begin_of(0)(own)] + other[begin_of(0)(other) :])


def without_a_shard(folder: Path, _: Saved) -> None:
    change_index(folder, lambda names: [names.pop(name) for name in [*names] if names[name] == SHARDS[1]])
    (folder / SHARDS[1]).unlink()


def without_a_shard_and_index(folder: Path, _: Saved) -> None:
    (folder / INDEX).unlink()
    (folder / SHARDS[1]).unlink()
    (folder / SHARDS[0]).rename(folder / "model.safetensors")


def index_names_another_shard(folder: Path, _: Saved) -> None:
    change_index(folder, lambda names: names.update({"a.one": SHARDS[1]}))


def shard_twice(folder: Path, _: Saved) -> None:
    shutil.copy(folder / SHARDS[0], folder / "extra.safetensors")
    (folder / INDEX).unlink()


FOLDER_ATTACKS: dict[str, Callable[[Path, Saved], None]] = {
    "a plain checkpoint": plain_file,
    "a plain shard beside": plain_shard_beside,
    "two shards swapped": swapped_shards,
    "a shard in place of the other": swapped_shards_without_index_of_one,
    "a shard of another save": shard_of_other_save,
    "the data of another save": data_of_other_save,
    "a shard that the index leaves out": without_a_shard,
    "a shard without its checkpoint": without_a_shard_and_index,
    "an index that names another shard": index_names_another_shard,
    "a shard under two names": shard_twice,
}


def stream_equal(folder: Path) -> None:
    with streamer.stream(folder, key=KEY, order="file") as stream:
        for name, tensor in stream:
            assert torch.equal(tensor, TENSORS[name])


def refused(folder: Path) -> streamer.StreamerError:
    """Load in each way; every tensor before the error is right. Return the last error."""
    with pytest.raises(streamer.StreamerError):
        stream_equal(folder)
    targets = {name: torch.full_like(each, 7) for name, each in TENSORS.items()}
    with pytest.raises(streamer.StreamerError):
        streamer.load_into(folder, targets, key=KEY)
    with pytest.raises(streamer.StreamerError) as raised:
        streamer.load(folder, key=KEY)
    return raised.value


@pytest.mark.parametrize("attack", FILE_ATTACKS)
def test_a_changed_file_is_refused(saved: Saved, tmp_path: Path, attack: str) -> None:
    folder = shutil.copytree(saved.open, tmp_path / "model")
    before = (folder / SHARDS[0]).read_bytes()
    after = FILE_ATTACKS[attack](before)
    assert after != before
    (folder / SHARDS[0]).write_bytes(after)
    refused(folder)


@pytest.mark.parametrize("attack", FOLDER_ATTACKS)
def test_a_changed_folder_is_refused(saved: Saved, tmp_path: Path, attack: str) -> None:
    folder = shutil.copytree(saved.open, tmp_path / "model")
    FOLDER_ATTACKS[attack](folder, saved)
    refused(folder)


@pytest.mark.parametrize("tensor", range(3))
@pytest.mark.parametrize("at", [begin_of, end_of])
def test_a_changed_file_with_hidden_names_is_refused(
    saved: Saved, tmp_path: Path, tensor: int, at: Callable[[int], Callable[[bytes], int]]
) -> None:
    folder = shutil.copytree(saved.hidden, tmp_path / "model")
    (folder / SHARDS[0]).write_bytes(flipped(at(tensor))((folder / SHARDS[0]).read_bytes()))
    assert isinstance(refused(folder), streamer.TamperedError)


@pytest.mark.parametrize("hides_names", [False, True])
def test_no_bit_can_be_flipped(saved: Saved, tmp_path: Path, hides_names: bool) -> None:
    folder = shutil.copytree(saved.hidden if hides_names else saved.open, tmp_path / "model")
    before = (folder / SHARDS[0]).read_bytes()
    chosen = random.Random(1)
    places = [chosen.randrange(len(before)) for _ in range(20)] + [chosen.randrange(600) for _ in range(20)]
    for place in places:
        (folder / SHARDS[0]).write_bytes(flipped(lambda _, place=place: place)(before))
        with pytest.raises(streamer.StreamerError):
            streamer.load(folder, key=KEY)
    (folder / SHARDS[0]).write_bytes(before)
    assert torch.equal(streamer.load(folder, key=KEY)["a.one"], TENSORS["a.one"])


def test_a_tensor_with_a_wrong_piece_is_named(saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved.open, tmp_path / "model")
    data = (folder / SHARDS[0]).read_bytes()
    (folder / SHARDS[0]).write_bytes(flipped(begin_of(1))(data))
    error = refused(folder)
    assert isinstance(error, streamer.TamperedError)
    assert divided(data).tensors[1][0] in str(error)
    assert SHARDS[0] in str(error)


def test_parts_are_authenticated_whole(saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved.open, tmp_path / "model")
    data = (folder / SHARDS[0]).read_bytes()
    name = divided(data).tensors[0][0]
    (folder / SHARDS[0]).write_bytes(flipped(begin_of(0))(data))
    with streamer.open(folder, key=KEY) as opened:
        assert torch.equal(opened[name][-5:], TENSORS[name][-5:])
        with pytest.raises(streamer.TamperedError, match=name):
            opened[name][5:9]
