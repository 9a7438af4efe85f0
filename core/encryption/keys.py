"""Where the key of a checkpoint comes from: bytes, a file, an environment variable, a function, or a key service.

Guarantees: no `repr`, message or log shows a key, or a text that may be one. A key is read when it is used, and not
kept. Refuses keys of another length than 32 bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from streamer.core.errors import EncryptionKeyError, StreamerError
from streamer.core.quoting import quoted

__all__ = ["KEY_BYTES", "DataKey", "KeyOption", "KeyProvider", "KeySource", "derived", "hidden_key", "key_id_of"]

KEY_BYTES = 32
MOST_KEY_FILE_BYTES = 1024  # 32 bytes as text need 64 digits; more is another file
MOST_KEY_ID_CHARACTERS = 2048  # the name of a key in Google's service has up to 250, an ARN up to 2048
MOST_WRAPPED_BYTES = 32 << 10  # wrapped keys of the large services have a few hundred
ENVIRONMENT_PREFIX = "env:"
_HINT = "A key is 32 bytes; a text is the path of a file with them, or env:NAME for an environment variable"


@dataclass(frozen=True)
class DataKey:
    """A new key for one checkpoint, as a `KeyProvider` makes it.

    Attributes:
        key: 32 bytes, different for each checkpoint.
        wrapped: The same key, encrypted by the service. It is stored in the checkpoint, and is no secret.
        key_id: The service's name of the key that encrypts `wrapped`. It is stored in the checkpoint.
    """

    key: bytes = field(repr=False)
    wrapped: bytes
    key_id: str


@runtime_checkable
class KeyProvider(Protocol):
    """A key service (KMS): each checkpoint has a key of its own, which only the service can unwrap.

    Example:
        >>> class OfKms:                                                         # doctest: +SKIP
        ...     def new_key(self):
        ...         made = kms.generate_data_key(KeyId="alias/weights", KeySpec="AES_256")
        ...         return streamer.DataKey(made["Plaintext"], made["CiphertextBlob"], made["KeyId"])
        ...     def unwrap(self, key_id, wrapped):
        ...         return kms.decrypt(KeyId=key_id, CiphertextBlob=wrapped)["Plaintext"]
    """

    def new_key(self) -> DataKey:
        """Make a key for one checkpoint that is saved."""

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the key of a checkpoint that is loaded.

        Args:
            key_id: As `DataKey.key_id` was. Whoever can write the checkpoint can change it: use it only for keys that
                this program may use.
            wrapped: As `DataKey.wrapped` was.
        """


KeyOption: TypeAlias = "bytes | str | os.PathLike[str] | Callable[[], bytes] | KeyProvider | None"


class KeySource:
    """An argument ``key=``, which no `repr` shows.

    Args:
        value: The argument.
    """

    def __init__(self, value: Any) -> None:
        self._value = value.value() if isinstance(value, KeySource) else value

    def value(self) -> Any:
        """Return the argument."""
        return self._value

    def check(self) -> KeySource:
        """Check the type, and the length of bytes; read nothing.

        Raises:
            EncryptionKeyError: the argument cannot be a key.
        """
        value = self._value
        if isinstance(value, (bytes, bytearray, memoryview)):
            _checked(bytes(value), "the key")
        elif not (isinstance(value, (str, os.PathLike, KeyProvider)) or callable(value)):
            raise EncryptionKeyError(f"a key is bytes, not {type(value).__name__}", hint=_HINT)
        return self

    def new_key(self) -> DataKey:
        """Return the key of a checkpoint that is saved; `DataKey.wrapped` is empty without a key service.

        Raises:
            EncryptionKeyError: there is no key, or it is of another length.
        """
        if not isinstance(self._value, KeyProvider):
            key = self._plain_key()
            return DataKey(key, b"", key_id_of(key))
        made = _of_service("new_key", self._value.new_key)
        if not isinstance(made, DataKey) or not isinstance(made.key_id, str) or not isinstance(made.wrapped, bytes):
            raise EncryptionKeyError("new_key of the key provider returned no streamer.DataKey")
        if not made.wrapped or len(made.wrapped) > MOST_WRAPPED_BYTES or len(made.key_id) > MOST_KEY_ID_CHARACTERS:
            raise EncryptionKeyError("the key provider returned no wrapped key, or one that is too long")
        return DataKey(_checked(made.key, "the key provider's key"), made.wrapped, made.key_id)

    def key_for(self, key_id: str, wrapped: bytes, uri: str) -> bytes:
        """Return the key of a checkpoint that is loaded.

        Args:
            key_id: The checkpoint's name of its key.
            wrapped: Its wrapped key, or nothing.
            uri: The checkpoint, for messages.

        Raises:
            EncryptionKeyError: there is no key, or it is another one.
        """
        if isinstance(self._value, KeyProvider):
            if not wrapped:
                hint = "Give the key itself: its bytes, a path, or env:NAME"
                raise EncryptionKeyError(_wants(key_id, "was not made by a key service"), uri=uri, hint=hint)
            provider = self._value
            return _checked(_of_service("unwrap", lambda: provider.unwrap(key_id, wrapped)), "the unwrapped key")
        if wrapped:
            hint = "Give a key provider as key=, with a method unwrap(key_id, wrapped)"
            raise EncryptionKeyError(_wants(key_id, "was wrapped by a key service"), uri=uri, hint=hint)
        key = self._plain_key()
        if not hmac.compare_digest(key_id_of(key).encode(), key_id.encode(errors="replace")):
            what = _wants(key_id, f"is not the given key {key_id_of(key)}")
            raise EncryptionKeyError(what, uri=uri, hint="Give the key with which it was saved")
        return key

    def _plain_key(self) -> bytes:
        value = self._value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _checked(bytes(value), "the key")
        if isinstance(value, str) and value.startswith(ENVIRONMENT_PREFIX):
            name = value.removeprefix(ENVIRONMENT_PREFIX)
            text = os.environ.get(name)
            if not text:
                raise EncryptionKeyError(f"the environment variable {quoted(name)} with the key is not set", hint=_HINT)
            return _of_text(text, f"the environment variable {quoted(name)}")
        if isinstance(value, (str, os.PathLike)):
            return _of_file(value)
        return _checked(_of_service("key=", value), "the key")

    def __repr__(self) -> str:
        return "KeySource(…)"


def hidden_key(value: Any) -> KeySource | None:
    """Wrap the argument ``key=`` before anything can raise: a traceback may show arguments."""
    return None if value is None else KeySource(value)


def key_id_of(key: bytes) -> str:
    """Return the name of a key without a key service: 16 hexadecimal digits that reveal nothing of it.

    Example:
        >>> key_id_of(bytes(32))
        '1e059404923de0e6'
    """
    return derived(key, b"", b"streamer-encryption-1 key id", 8).hex()


def derived(key: bytes, salt: bytes, info: bytes, size_bytes: int = KEY_BYTES) -> bytes:
    """Derive bytes from a key by HKDF with SHA-256 (RFC 5869); at most 32 bytes, its first block."""
    secret = hmac.new(salt or bytes(hashlib.sha256().digest_size), key, hashlib.sha256).digest()
    return hmac.new(secret, info + b"\x01", hashlib.sha256).digest()[:size_bytes]


def _wants(key_id: str, why: str) -> str:
    return f"the checkpoint is encrypted with key {quoted(key_id)}, which {why}"


def _checked(key: Any, what: str) -> bytes:
    if not isinstance(key, bytes):
        raise EncryptionKeyError(f"{what} is not bytes, but {type(key).__name__}", hint=_HINT)
    if len(key) != KEY_BYTES:
        raise EncryptionKeyError(f"{what} has {len(key)} bytes, not {KEY_BYTES}", hint=_HINT)
    return key


def _of_file(path: Any) -> bytes:
    """Read a key file. Its path is in no message unless the file exists: it may be a key that was passed as a text."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_KEY_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise EncryptionKeyError(f"the key file cannot be read: {why}", hint=_HINT) from None
    if len(content) == KEY_BYTES:
        return content
    try:
        text = content.decode("ascii") if len(content) <= MOST_KEY_FILE_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    return _of_text(text, f"the key file {quoted(os.fsdecode(path))}")


def _of_text(text: str, where: str) -> bytes:
    """Decode 64 hexadecimal digits, or base64."""
    text = text.strip()
    try:
        key = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        hint = "Write 64 hexadecimal digits, or base64: openssl rand -hex 32"
        raise EncryptionKeyError(f"{where} does not hold a key of {KEY_BYTES} bytes", hint=hint)
    return key


def _of_service(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StreamerError:
        raise
    except Exception as error:
        raise EncryptionKeyError(f"{what} raised {type(error).__name__}", hint="Its cause says more") from error
