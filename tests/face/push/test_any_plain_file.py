"""With a key, who can write the folder chooses neither what is checked nor that nothing is: every file is looked at."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from tensorizer_files import KEY, file_of, sealed

import streamer
from streamer._check import check
from streamer._pull.pull import PullArguments, pull
from streamer._push.push import Target, push
from streamer.core.errors import StreamerError

OTHER_KEY = bytes(range(1, 33))
FORGED = torch.zeros(100)


def of_torch(*, is_zip: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": FORGED}, buffer, _use_new_zipfile_serialization=is_zip)
    return buffer.getvalue()


def archive(suffix: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(f"a{suffix}", bytes(400))
    return buffer.getvalue()


def array(*, packed: bool) -> bytes:
    buffer = io.BytesIO()
    if packed:
        np.savez(buffer, a=FORGED.numpy())
    else:
        np.save(buffer, FORGED.numpy())
    return buffer.getvalue()


def encrypted(folder: Path, key: bytes, **how: Any) -> bytes:
    streamer.save({"a": torch.ones(100)}, folder / "x.safetensors", key=key, digests=False, overwrite=True, **how)
    return (folder / "x.safetensors").read_bytes()


def without_metadata(data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    del header["__metadata__"]
    return data[:8] + json.dumps(header).encode().ljust(size) + data[8 + size :]


VOCABULARY = b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03<s>\x15\0\0\0\0\x18\x03"
PLAIN: dict[str, bytes] = {
    "safetensors": save({"a": FORGED}),
    "safetensors without tensors": save({}),
    "torch": of_torch(),
    "old torch": of_torch(is_zip=False),
    "pickle": pickle.dumps({"a": FORGED.numpy()}),
    "pickle in text": pickle.dumps(OrderedDict(a=np.zeros(3, dtype="i1")), protocol=0).replace(b"\0", b""),
    "npz": array(packed=True),
    "npy": array(packed=False),
    "gguf": b"GGUF\x03\0\0\0" + bytes(16),
    "tensorizer": file_of([], flags=0),
    "tensorizer that says it is encrypted, without tensors": file_of([]),
    "tensorizer that says it is encrypted, without bytes": file_of([sealed("w", np.zeros((0, 3), dtype="f4"))]),
    "zip": archive(".weight"),
    "zip behind a text": b"# a text\n" + archive(".weight"),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "hdf5 behind a text": b"# a text".ljust(512, b" ") + b"\x89HDF\r\n\x1a\n" + bytes(100),
    "msgpack": b"\x81\xa1a\xc4\x04\0\0\0\0",
    "onnx": b"\x08\x08\x12\x07pytorch:\0\0",
    "an image that is no image": b"\x89PNG\r\n" + of_torch(),
    "a vocabulary that is none": VOCABULARY + of_torch(),
    "zeros": bytes(64),
}
HARMLESS = {
    "empty": b"",
    "json": b'{"model_type": "llama"}',
    "readme": "# Modèle\nconfiguration\n".encode(),
    "text that begins as a pickle": b"cat\ndog\n0.1.0\n",
    "version": b"0.1.0",
    "vocabulary": VOCABULARY,
    "image": b"\x89PNG\r\n\x1a\n" + bytes(40),
}
NAMES = (
    *("model.safetensors", "MODEL.SAFETENSORS", ".model.safetensors", "a/model.safetensors", "pytorch_model.bin"),
    *("model.pt", "x.pth", "x.ckpt", "x.npz", "x.npy", "x.gguf", "x.tensors", ".metadata", "__0_0.distcp"),
    *("config.json", "README.md", "tokenizer.model.bin", "weights", "x.h5", "x.pkl", "x-00001-of-00001.safetensors"),
)
FITTING = {"vocabulary": "tokenizer.model", "image": "assets/plot.png"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Contents that need a key to be made."""
    folder = tmp_path_factory.mktemp("made")
    ours, other = encrypted(folder, KEY), encrypted(folder, OTHER_KEY)
    hidden = encrypted(folder, KEY, hide_names=True)
    return {
        "of another key": other,
        "stripped": without_metadata(ours),
        "stripped, with hidden names": without_metadata(hidden),
        "cut": ours[:-1],
        "changed": ours[:-1] + bytes([ours[-1] ^ 1]),
    }


def pulled(source: Path, target: Path, **how: Any) -> int:
    wanted = PullArguments(key=KEY, **how)
    return pull(str(source), str(target), wanted, progress=False, on_wait=print).authenticated_files


def pushed(source: Path, target: Path, **how: Any) -> int:
    return push(str(source), Target(str(target)), PullArguments(key=KEY, **how), progress=False).authenticated_files


@pytest.fixture
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    numbers = itertools.count()
    base = tmp_path_factory.mktemp("folders")
    return lambda: base / str(next(numbers))


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside an encrypted one", "alone"])
def test_no_content_under_any_name_passes_for_an_encrypted_file(
    made: dict[str, bytes], folders: Callable[[], Path], is_beside: bool
) -> None:
    contents = {**PLAIN, **made}

    @settings(max_examples=40)
    @given(content=st.sampled_from([*contents]), name=st.sampled_from(NAMES))
    def try_it(content: str, name: str) -> None:
        base = folders()
        path = base / "source" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(contents[content])
        if is_beside:
            streamer.save({"b": torch.ones(9)}, base / "source" / "encrypted.safetensors", key=KEY, digests=False)
        for copy in (pulled, pushed):
            with pytest.raises(StreamerError):
                copy(base / "source", base / "to")
            assert not list((base / "to").glob("[!.]*"))
        verbs: tuple[Callable[[], object], ...] = (
            lambda: streamer.load(path, key=KEY, progress=False),
            lambda: streamer.open(path, key=KEY),
            lambda: check(str(path), key=KEY, in_full=True),
            lambda: streamer.load_into(path, {"a": torch.ones(100)}, key=KEY),
        )
        for verb in verbs:
            with pytest.raises(StreamerError):
                verb()

    try_it()


@each_row("content", HARMLESS)
def test_texts_images_and_tokenizers_need_no_encryption(content: str, tmp_path: Path) -> None:
    path = tmp_path / "source" / FITTING.get(content, "config.json")
    path.parent.mkdir(parents=True)
    path.write_bytes(HARMLESS[content])
    with pytest.raises(streamer.TamperedError, match="none of the 1 files is encrypted: nothing was authenticated"):
        pulled(tmp_path / "source", tmp_path / "to")
    streamer.save({"b": torch.ones(9)}, tmp_path / "source", key=KEY)
    assert pulled(tmp_path / "source", tmp_path / "to") == pushed(tmp_path / "source", tmp_path / "there") == 1
    assert (tmp_path / "to" / path.relative_to(tmp_path / "source")).read_bytes() == HARMLESS[content]


@pytest.mark.parametrize("name", ["config.json", "weights", "model.bin", ".hidden", "MODEL.SAFETENSORS"])
def test_an_encrypted_file_under_another_name_is_authenticated(name: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    data = encrypted(tmp_path, KEY)
    (tmp_path / "source" / name).write_bytes(data)
    assert pulled(tmp_path / "source", tmp_path / "to") == 1
    (tmp_path / "source" / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(streamer.TamperedError):
        pulled(tmp_path / "source", tmp_path / "there")


def test_a_plain_file_of_an_earlier_pull_is_refused_regression(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "to"
    source.mkdir()
    (source / "pytorch_model.bin").write_bytes(PLAIN["torch"])
    pull(str(source), str(target), PullArguments(), progress=False, on_wait=print)
    streamer.save({"a": torch.ones(9)}, source, key=KEY)
    with pytest.raises(streamer.TamperedError, match=r"to/pytorch_model.bin: a key is given, and the file is not"):
        pulled(source, target, exclude=["*.bin"])
    (target / "pytorch_model.bin").unlink()
    assert pulled(source, target, exclude=["*.bin"]) == 1


def contexts() -> Iterator[tuple[str | None, str | None]]:
    return itertools.product((None, "llama-prod-7", "llama-prod-8"), repeat=2)


@pytest.mark.parametrize("hide_names", [False, True])
def test_a_checkpoint_is_loaded_and_pulled_under_its_own_context_alone(hide_names: bool, tmp_path: Path) -> None:
    tensors = {f"w{number}": torch.ones(2000) for number in range(3)}
    for number, (saved, asked) in enumerate(contexts()):
        folder = tmp_path / str(number)
        streamer.save(tensors, folder / "source", key=KEY, context=saved, hide_names=hide_names, max_shard_bytes=9000)
        verbs: tuple[Callable[[], Any], ...] = (
            lambda: streamer.load(folder / "source", key=KEY, context=asked, progress=False),  # noqa: B023
            lambda: streamer.open(folder / "source", key=KEY, context=asked).close(),  # noqa: B023
            lambda: check(str(folder / "source"), key=KEY, context=asked),  # noqa: B023
            lambda: pulled(folder / "source", folder / "to", context=asked),  # noqa: B023
            lambda: pushed(folder / "source", folder / "there", context=asked),  # noqa: B023
        )
        for verb in verbs:
            if saved == asked:
                verb()
                continue
            kind = streamer.EncryptionKeyError if asked is None else streamer.TamperedError
            with pytest.raises(kind, match="bound to"):
                verb()


def test_only_files_on_a_disk_are_pushed_with_a_key(tmp_path: Path) -> None:
    streamer.save({"a": FORGED}, "memory://pushed-with-a-key", key=KEY)
    with pytest.raises(streamer.UsageError, match="a key authenticates files on a disk"):
        push("memory://pushed-with-a-key", Target(str(tmp_path)), PullArguments(key=KEY), progress=False)


def test_a_context_is_a_name_and_needs_a_key(tmp_path: Path) -> None:
    for wrong in ("", 7, "x" * 257):
        with pytest.raises(streamer.UsageError, match="a context is a text of 1 to 256 characters"):
            streamer.save({"a": FORGED}, tmp_path / "model", key=KEY, context=wrong)  # type: ignore[arg-type]
    for verb in (lambda: streamer.save({"a": FORGED}, tmp_path, context="x"), lambda: streamer.load("/x", context="x")):
        with pytest.raises(streamer.UsageError, match="so needs key="):
            verb()


def test_a_context_that_was_changed_in_the_header_is_refused(tmp_path: Path) -> None:
    streamer.save({"a": FORGED}, tmp_path / "model", key=KEY, context="llama-prod-7")
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"llama-prod-7", b"llama-prod-8", 1))
    with pytest.raises(streamer.TamperedError, match="not as they were saved"):
        streamer.load(path, key=KEY, context="llama-prod-8")
