"""A key is read from the place that the caller names. No text shows it. The error for a wrong key has the key id."""

from __future__ import annotations

import base64
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from each_row import each_row
from encryption_reference import key_id
from shown import shown_by

import streamer
from streamer._check import check
from streamer.core.encryption import keys
from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.secret_keys import SecretKey
from streamer.core.request.request import Request

KEY = bytes(range(32))
OTHER = bytes(range(7, 39))
TENSORS = {"a": torch.arange(9)}


class StubKms:
    """A key service in memory, as AWS KMS works: data keys are wrapped by a key that never leaves it."""

    def __init__(self) -> None:
        self.unwrapped = 0
        self._own = AESGCM(AESGCM.generate_key(256))

    def new_key(self) -> streamer.DataKey:
        key, nonce = os.urandom(32), os.urandom(12)
        return streamer.DataKey(key, nonce + self._own.encrypt(nonce, key, b"weights"), "alias/weights")

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        assert key_id == "alias/weights"
        self.unwrapped += 1
        return self._own.decrypt(wrapped[:12], wrapped[12:], b"weights")


def test_a_key_service_wraps_a_key_for_each_checkpoint(tmp_path: Path) -> None:
    kms = StubKms()
    tensors = {"a": torch.arange(300_000), "b": torch.arange(300_000)}
    streamer.save(tensors, tmp_path / "one", key=kms, max_shard_bytes="3MB")
    streamer.save(tensors, tmp_path / "two", key=kms)
    loaded = streamer.load(tmp_path / "one", key=kms)
    assert torch.equal(loaded["a"], tensors["a"])
    assert kms.unwrapped == 1  # for both shards
    with pytest.raises(streamer.EncryptionKeyError, match="unwrap raised InvalidTag"):
        streamer.load(tmp_path / "one", key=StubKms())
    with pytest.raises(streamer.EncryptionKeyError, match="wrapped by a key service"):
        streamer.load(tmp_path / "one", key=KEY)
    streamer.save(tensors, tmp_path / "three", key=KEY)
    with pytest.raises(streamer.EncryptionKeyError, match="was not made by a key service"):
        streamer.load(tmp_path / "three", key=kms)


@each_row(
    ("wrapped", "key_id"),
    [
        (KEY, "id"),
        (b"plain:" + KEY, "id"),
        (KEY.hex().upper().encode(), "id"),
        (base64.b64encode(KEY), "id"),
        (base64.urlsafe_b64encode(OTHER).rstrip(b"="), "id"),
        (b"wrapped", KEY.hex()),
    ],
)
def test_a_key_service_that_does_not_wrap_is_refused_regression(tmp_path: Path, wrapped: bytes, key_id: str) -> None:
    """The key was written into the header of the file that it encrypts."""

    class Service:
        def new_key(self) -> streamer.DataKey:
            key = OTHER if wrapped == base64.urlsafe_b64encode(OTHER).rstrip(b"=") else KEY
            return streamer.DataKey(key, wrapped, key_id)

        def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
            raise AssertionError((key_id, wrapped))

    with pytest.raises(streamer.EncryptionKeyError, match="holds the key itself"):
        streamer.save(TENSORS, tmp_path / "model", key=Service())
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", [KEY, KEY.hex().encode() + b"\n", base64.b64encode(KEY)])
def test_a_key_is_bytes_a_file_a_variable_or_a_function(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamer.save(TENSORS, tmp_path / "model", key=KEY)
    (tmp_path / "key").write_bytes(content)
    monkeypatch.setenv("MY_KEY", KEY.hex())
    for key in (KEY, bytearray(KEY), str(tmp_path / "key"), tmp_path / "key", "env:MY_KEY", lambda: KEY):
        assert torch.equal(streamer.load(tmp_path / "model", key=key)["a"], TENSORS["a"])


@each_row(
    ("key", "message"),
    [
        (b"x" * 31, "has 31 bytes, not 32"),
        (7, "a key is bytes, not int"),
        ("/nowhere/key", "cannot be read: No such file"),
        (KEY.hex(), "cannot be read"),
        ("env:NO_SUCH_KEY", "'NO_SUCH_KEY' with the key is not set"),
        (lambda: "text", "is not bytes, but str"),
        (lambda: b"x", "has 1 bytes, not 32"),
        (lambda: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, key: Any, message: str) -> None:
    with pytest.raises(streamer.EncryptionKeyError, match=message) as raised:
        streamer.save(TENSORS, tmp_path / "model", key=key)
    assert KEY.hex() not in str(raised.value)
    assert not (tmp_path / "model").exists()


def test_the_home_folder_of_a_key_file_is_expanded_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key.hex").write_text(KEY.hex())
    streamer.save(TENSORS, tmp_path / "model", key="~/key.hex")
    assert torch.equal(streamer.load(tmp_path / "model", key=KEY)["a"], TENSORS["a"])


def test_a_missing_key_file_is_named_if_it_cannot_be_a_key_regression(tmp_path: Path) -> None:
    for key in (f"{tmp_path}/absent.hex", "~/absent.hex"):
        with pytest.raises(streamer.EncryptionKeyError, match=f"key file '{key}' cannot be read: No such file"):
            streamer.save(TENSORS, tmp_path / "model", key=key)
    for secret in ("/" + "Zm9v" * 10 + "Zm8=", "passphrase", "pass/phrase", base64.b64encode(KEY).decode()):
        with pytest.raises(streamer.EncryptionKeyError, match="the key file cannot be read") as raised:
            streamer.save(TENSORS, tmp_path / "model", key=secret)
        assert secret not in str(raised.value)


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret words, more than thirty-two bytes of them")
    with pytest.raises(streamer.EncryptionKeyError, match="does not hold a key") as raised:
        streamer.save(TENSORS, tmp_path / "model", key=tmp_path / "key")
    assert "secret" not in str(raised.value)


def test_a_missing_and_a_wrong_key_are_named(tmp_path: Path) -> None:
    streamer.save(TENSORS, tmp_path, key=KEY)
    with pytest.raises(streamer.EncryptionKeyError, match=f"encrypted with key '{key_id(KEY)}', and no key is given"):
        streamer.load(tmp_path)
    with pytest.raises(streamer.EncryptionKeyError, match=f"'{key_id(KEY)}', which is not the given key"):
        streamer.load(tmp_path, key=bytes(32))


def spoiled(folder: Path) -> None:
    """Change the last tag."""
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def spoiled_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"pt"', b'"np"', 1))


class Careless:
    """A key provider whose keys are too long."""

    def new_key(self) -> streamer.DataKey:
        return streamer.DataKey(LONG, b"wrapped", "id")

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        return LONG


LONG = bytes(range(33))  # wrong, and yet a secret
FAILURES: dict[str, Callable[[Path], object]] = {
    "wrong key": lambda folder: streamer.load(folder, key=OTHER),
    "wrong length": lambda folder: streamer.load(folder, key=LONG),
    "a key as a path": lambda folder: streamer.load(folder, key=KEY.hex()),
    "a wrong text in the environment": lambda folder: streamer.load(folder, key="env:MY_LONG_KEY"),
    "a wrong file": lambda folder: streamer.load(folder, key=folder.parent / "long"),
    "a function that returns too much": lambda folder: streamer.load(folder, key=lambda: LONG),
    "a provider that returns too much": lambda folder: streamer.save(TENSORS, folder.parent / "two", key=Careless()),
    "a changed tensor": lambda folder: (spoiled(folder), streamer.load(folder, key=KEY)),
    "a changed header": lambda folder: (spoiled_header(folder), streamer.load(folder, key=KEY)),
    "a checkpoint that is there": lambda folder: streamer.save(TENSORS, folder, key=KEY),
    "a tensor that cannot be saved": lambda folder: streamer.save({"a": 1}, folder, key=KEY),
    "an unknown keyword": lambda folder: streamer.load(folder, key=KEY, kee=1),  # type: ignore[call-arg]
    "a missing name": lambda folder: streamer.load(folder, key=KEY, names="b"),
}


@each_row("failure", FAILURES)
def test_no_error_shows_a_key(failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_LONG_KEY", LONG.hex())
    (tmp_path / "long").write_text(LONG.hex())
    streamer.save(TENSORS, tmp_path / "model", key=KEY)
    with pytest.raises((streamer.StreamerError, TypeError)) as raised:
        FAILURES[failure](tmp_path / "model")
    shown = shown_by(raised.value)
    for key in (KEY, OTHER, LONG):
        assert not [text for text in shown if key.hex() in text or repr(key)[2:-1] in text]


def test_a_key_shows_in_no_text(tmp_path: Path) -> None:
    source = KeySource(KEY)
    assert repr(source) == "KeySource(…)"
    assert str(KEY) not in repr(streamer.DataKey(KEY, b"wrapped", "id"))
    request = Request(uri=str(tmp_path), key=KEY)
    assert "key" not in repr(request)
    assert pickle.loads(pickle.dumps(KeySource(KEY))).value() == KEY


def test_a_key_id_and_derived_keys_are_of_rfc_5869() -> None:
    assert SecretKey(KEY).key_id == key_id(KEY)
    # Test case 1 of appendix A, its first block
    okm = SecretKey(b"\x0b" * 22).derived(bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert okm.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


class Constant:
    """A key provider whose keys are one byte, repeated."""

    def new_key(self) -> streamer.DataKey:
        return streamer.DataKey(bytes(32), b"wrapped", "id")

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        return bytes(32)


@pytest.mark.parametrize("byte", [0, 7, 0x61, 0xFF])
def test_a_key_of_equal_bytes_is_refused_regression(
    byte: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weak = bytes([byte]) * 32
    contents = {"raw": weak, "digits": weak.hex().encode(), "base64": base64.b64encode(weak)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("WEAK", weak.hex())
    written: list[Any] = [weak, tmp_path / "digits", tmp_path / "base64", "env:WEAK"]
    found: list[Any] = [bytearray(weak), tmp_path / "raw", lambda: weak, Constant()]
    for key in found if byte == 0 else [*found[:-1], *written]:
        with pytest.raises(streamer.EncryptionKeyError, match=r"(any|no)body can guess"):
            streamer.save(TENSORS, tmp_path / "model", key=key)
    assert not (tmp_path / "model").exists()
    for number, key in enumerate(written if byte == 0 else []):  # the key of examples: somebody wrote it out
        caplog.clear()
        streamer.save(TENSORS, tmp_path / str(number), key=key)
        assert "32 zero bytes, which anybody can guess" in caplog.text


@each_row("text", ["correct horse battery staple 123", "a" * 32, "x" * 64, "hunter2", "é" * 16, ""])
def test_a_file_of_words_is_no_key_regression(text: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text, encoding="utf-8")
    with pytest.raises(streamer.EncryptionKeyError, match="does not hold a key of 32 bytes that nobody can guess"):
        streamer.save(TENSORS, tmp_path / "model", key=tmp_path / "key")


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_key_file_that_all_users_may_read_is_reported(
    mode: int, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(mode)
    streamer.save(TENSORS, tmp_path / "model", key=tmp_path / "key")
    assert ("can be read by every user of this machine: chmod 600" in caplog.text) is is_told


@pytest.mark.parametrize("verb", ["load", "open", "load_into", "check", "save"])
def test_a_key_that_is_read_several_times_comes_from_a_pipe_once_regression(verb: str, tmp_path: Path) -> None:
    """A pipe gives its bytes once: the second file of a checkpoint found no key."""
    tensors = {name: torch.ones(1 << 18) for name in "abc"}
    streamer.save(tensors, tmp_path / "m", key=KEY, max_shard_bytes=1 << 20)
    os.mkfifo(tmp_path / "pipe")
    key = tmp_path / "pipe"
    verbs: dict[str, Callable[[], Any]] = {
        "load": lambda: streamer.load(tmp_path / "m", key=key),
        "open": lambda: streamer.open(tmp_path / "m", key=key)["b"],
        "load_into": lambda: streamer.load_into(tmp_path / "m", {n: torch.zeros(1 << 18) for n in "abc"}, key=key),
        "check": lambda: check(str(tmp_path / "m"), key=key, in_full=True),
        "save": lambda: streamer.save(tensors, tmp_path / "new", key=key, max_shard_bytes=1 << 20),
    }
    writer = threading.Thread(target=lambda: key.write_bytes(KEY.hex().encode()))
    writer.start()
    verbs[verb]()
    writer.join()


def test_a_pipe_without_a_writer_does_not_wait_for_ever_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "PIPE_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(streamer.EncryptionKeyError, match="cannot be read: nobody wrote a key into it"):
        KeySource(str(tmp_path / "pipe")).new_key()
