"""The bytes of a key, and the text of a passphrase, which no `repr` shows.

Refuses keys of another length than 32 bytes, and keys that anybody can guess: equal bytes, and words in place of bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Any, cast

from streamer.core.errors import EncryptionKeyError

KEY_BYTES = 32
MOST_KEY_FILE_BYTES = 1024  # 32 bytes as text need 64 digits; a longer file holds no key
KEY_HINT = "A key is 32 bytes; a text is the path of a key file, or env:NAME for an environment variable"


class Passphrase:
    """The text from which Tensorizer derived the key of an encrypted file; no `repr` shows it.

    Example:
        >>> Passphrase("correct horse battery staple")
        Passphrase(…)
    """

    def __init__(self, text: str | bytes) -> None:
        self._text = text.encode() if isinstance(text, str) else text
        if not isinstance(self._text, bytes) or not self._text:
            what = f"a passphrase is a text, not {type(text).__name__}" if self._text else "the passphrase is empty"
            raise EncryptionKeyError(what)

    def secret(self) -> bytes:
        """Return its bytes."""
        return self._text

    def __repr__(self) -> str:
        return "Passphrase(…)"


class SecretKey:
    """A key, valid or not, that no `repr` shows.

    Attributes:
        is_example: It is that key of an example.
    """

    def __init__(self, key: Any, *, is_written: bool = False) -> None:
        self._key = bytes(key) if isinstance(key, (bytearray, memoryview)) else key
        self.is_example = is_written and self._key == bytes(KEY_BYTES)

    @classmethod
    def of_text(cls, text: str | None) -> SecretKey:
        """Decode 64 hexadecimal digits, or base64; a text that is neither gives a key of no bytes."""
        digits = (text or "").strip()
        try:
            is_hexadecimal = len(digits) == 2 * KEY_BYTES
            key = bytes.fromhex(digits) if is_hexadecimal else base64.b64decode(digits, validate=True)
            return cls(key, is_written=True)
        except (ValueError, binascii.Error):
            return cls(b"")

    @classmethod
    def of_content(cls, content: bytes) -> SecretKey:
        """Decode the content of a file: the key, or a text as for `of_text`."""
        if len(content) == KEY_BYTES and not _is_text(content):
            return cls(content)
        return cls.of_text(content.decode("ascii", "replace") if len(content) <= MOST_KEY_FILE_BYTES else "")

    def secret(self) -> bytes:
        """Return its bytes, for a cipher of another library."""
        return cast("bytes", self._key)

    @property
    def problem(self) -> str | None:
        """Say why this is no key; None if it is one."""
        if not isinstance(self._key, bytes):
            return f"is not bytes, but {type(self._key).__name__}"
        if len(self._key) != KEY_BYTES:
            return f"has {len(self._key)} bytes, not {KEY_BYTES}"
        is_weak = len({*self._key}) == 1 and not self.is_example
        return f"is {KEY_BYTES} equal bytes, which anybody can guess" if is_weak else None

    def checked(self, what: str) -> SecretKey:
        """Return the key."""
        if self.problem is not None:
            raise EncryptionKeyError(f"{what} {self.problem}", hint=KEY_HINT)
        return self

    def is_shown_in(self, content: bytes) -> bool:
        """Say whether anybody finds the key in these bytes: as it is, or as hexadecimal digits or base64."""
        texts = (base64.b64encode(self._key).rstrip(b"="), base64.urlsafe_b64encode(self._key).rstrip(b"="))
        is_plain = self._key in content or self._key.hex().encode() in content.lower()
        return is_plain or any(text in content for text in texts)

    @property
    def key_id(self) -> str:
        """The name of the key without a key service: 16 hexadecimal digits that reveal nothing of it.

        Example:
            >>> SecretKey(bytes(32)).key_id
            '1e059404923de0e6'
        """
        return self.derived(b"", b"streamer-encryption-1 key id", 8).hex()

    def derived(self, salt: bytes, info: bytes, size_bytes: int = KEY_BYTES) -> bytes:
        """Derive bytes by HKDF with SHA-256 (RFC 5869); at most 32 bytes, its first block."""
        secret = hmac.new(salt or bytes(hashlib.sha256().digest_size), self._key, hashlib.sha256).digest()
        return hmac.new(secret, info + b"\x01", hashlib.sha256).digest()[:size_bytes]

    def __repr__(self) -> str:
        return "SecretKey(…)"


def _is_text(content: bytes) -> bool:
    """Say whether bytes are words; of 10^12 random keys less than one is."""
    try:
        return content.decode().strip().isprintable()
    except UnicodeDecodeError:
        return False
