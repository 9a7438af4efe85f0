"""Reads the key of a checkpoint from bytes, a file, an environment variable, a function, or a key service.

Guarantees: no `repr`, message or log shows a key, or a text that may be one. A key is read when it is used, and not
kept; that of a pipe is read once, and kept by its `KeySource`. A key file that every user of the machine may read is
used, with a warning.
"""

from __future__ import annotations

import errno
import hmac
import io
import os
import re
import select
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from streamer.core.causes import raise_from
from streamer.core.encryption.secret_keys import KEY_BYTES, KEY_HINT, MOST_KEY_FILE_BYTES, Passphrase, SecretKey
from streamer.core.errors import EncryptionKeyError, StreamerError, TamperedError, UsageError
from streamer.core.log import OwnLogger
from streamer.core.quoting import printable, quoted

MOST_CONTEXT_CHARACTERS = 256
MOST_KEY_ID_CHARACTERS = 2048  # the name of a key in Google's service has up to 250, an ARN up to 2048
MOST_WRAPPED_BYTES = 32 << 10  # wrapped keys of the large services have a few hundred
ENVIRONMENT_PREFIX = "env:"
PIPE_S = 60.0  # until the writer of a pipe has written the key: it may ask a key service, or a person

_log = OwnLogger()
_LIKE_A_KEY = re.compile(r"[A-Za-z0-9+/_-]{32,}=*")  # base64, which may hold slashes
LEAVE_OUT = "Leave key= out if that is right"  # the hint for a file that is not encrypted, which may be a downgrade


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


KeyOption: TypeAlias = "bytes | str | os.PathLike[str] | Callable[[], bytes] | KeyProvider | Passphrase | None"


class NewKey(NamedTuple):
    """The key of a checkpoint that is saved; `wrapped` is empty without a key service."""

    key: SecretKey
    wrapped: bytes
    key_id: str


class KeySource:
    """An argument ``key=``, which no `repr` shows."""

    def __init__(self, value: Any, context: str | None = None) -> None:
        is_source = isinstance(value, KeySource)
        self._value = value.value() if is_source else value
        self._of_pipe: list[SecretKey] = value._of_pipe if is_source else []  # a pipe can be read once
        self.context: str | None = value.context if is_source and context is None else context

    def value(self) -> Any:
        """Return the argument."""
        return self._value

    def check(self) -> KeySource:
        """Check the types, and bytes of a key; read nothing."""
        context = self.context
        if context is not None and not (isinstance(context, str) and 0 < len(context) <= MOST_CONTEXT_CHARACTERS):
            hint = "Name the model and the purpose: context='llama-prod-7'"
            raise UsageError(f"a context is a text of 1 to {MOST_CONTEXT_CHARACTERS} characters", hint=hint)
        if self._is_bytes:
            self._found_key()
        elif not (isinstance(self._value, (str, os.PathLike, KeyProvider, Passphrase)) or callable(self._value)):
            raise EncryptionKeyError(f"a key is bytes, not {type(self._value).__name__}", hint=KEY_HINT)
        return self

    def new_key(self) -> NewKey:
        """Return the key of a checkpoint that is saved."""
        if not isinstance(self._value, KeyProvider):
            key = self._plain_key()
            return NewKey(key, b"", key.key_id)
        made = _of_service("new_key", self._value.new_key)
        if not isinstance(made, DataKey) or not isinstance(made.key_id, str) or not isinstance(made.wrapped, bytes):
            raise EncryptionKeyError("new_key of the key provider returned no streamer.DataKey")
        if not made.wrapped or len(made.wrapped) > MOST_WRAPPED_BYTES or len(made.key_id) > MOST_KEY_ID_CHARACTERS:
            raise EncryptionKeyError("the key provider returned no wrapped key, or one that is too long")
        key = SecretKey(made.key).checked("the key provider's key")
        if key.is_shown_in(made.wrapped) or key.is_shown_in(made.key_id.encode(errors="replace")):
            hint = "Both are stored in the file, where everybody can read them: let the service encrypt the key"
            raise EncryptionKeyError("the key provider's wrapped key, or its name, holds the key itself", hint=hint)
        return NewKey(key, made.wrapped, made.key_id)

    def key_for(self, key_id: str, wrapped: bytes, uri: str) -> SecretKey:
        """Return the key of a checkpoint that is loaded."""
        if isinstance(self._value, KeyProvider):
            if not wrapped:
                hint = "Give the key itself: its bytes, a path, or env:NAME"
                raise EncryptionKeyError(_wants(key_id, "was not made by a key service"), uri=uri, hint=hint)
            provider = self._value
            found = _of_service("unwrap", lambda: SecretKey(provider.unwrap(key_id, wrapped)))
            return cast("SecretKey", found).checked("the unwrapped key")
        if wrapped:
            hint = "Give a key provider as key=, with a method unwrap(key_id, wrapped)"
            raise EncryptionKeyError(_wants(key_id, "was wrapped by a key service"), uri=uri, hint=hint)
        key = self._plain_key()
        if not hmac.compare_digest(key.key_id.encode(), key_id.encode(errors="replace")):
            what = _wants(key_id, f"is not the given key {key.key_id}")
            hint = "Give the key with which it was saved; ranks that save together all give one key"
            raise EncryptionKeyError(what, uri=uri, hint=hint)
        return key

    def check_context(self, context: str, uri: str) -> None:
        """Compare the name to which a checkpoint is bound, or an empty one, with the caller's."""
        if (self.context or "") == context:
            return
        if self.context is None:
            hint = (
                f"If that is the checkpoint that you want, pass context={context!r}; on the command line --key-context"
            )
            raise EncryptionKeyError(f"the checkpoint is bound to the context {quoted(context)}", uri=uri, hint=hint)
        bound = f"bound to the context {quoted(context)}" if context else "bound to no context"
        what = f"the checkpoint is {bound}, not to {quoted(self.context)}"
        raise TamperedError(what, uri=uri, hint="It was saved as another one: get the right one")

    def of_format(self, name: str) -> SecretKey | Passphrase:
        """Return the key, or the passphrase, of a file that another library encrypted."""
        self.check_context("", "")
        if isinstance(self._value, Passphrase):
            return self._value
        if isinstance(self._value, KeyProvider):
            hint = "Give the key itself: its bytes, a path, env:NAME, or streamer.Passphrase"
            raise EncryptionKeyError(f"files of {name} hold no key that a key service wrapped", hint=hint)
        return self._plain_key()

    @property
    def _is_bytes(self) -> bool:
        return isinstance(self._value, (bytes, bytearray, memoryview))

    def _plain_key(self) -> SecretKey:
        key = self._found_key()
        if key.is_example:
            _log.warning("the key is 32 zero bytes, which anybody can guess: use it for examples and tests only")
        return key

    def _found_key(self) -> SecretKey:
        if isinstance(self._value, Passphrase):
            hint = "Give a key of 32 bytes: openssl rand -hex 32"
            raise EncryptionKeyError("a passphrase opens files of Tensorizer only", hint=hint)
        if self._is_bytes:
            return SecretKey(self._value, is_written=isinstance(self._value, bytes)).checked("the key")
        if isinstance(self._value, str) and self._value.startswith(ENVIRONMENT_PREFIX):
            return _of_environment(self._value.removeprefix(ENVIRONMENT_PREFIX))
        if isinstance(self._value, (str, os.PathLike)):
            return self._of_file()
        found = _of_service("the function for the key", lambda: SecretKey(self._value()))
        return cast("SecretKey", found).checked("the key")

    def _of_file(self) -> SecretKey:
        """Read a key file; ``~`` is the home folder.

        If the file does not exist, a message shows its path only if it is clearly a path: a text may be a key.
        """
        if self._of_pipe:
            return self._of_pipe[0]
        try:
            # A FIFO without a writer is opened at once, too; open() would wait for one.
            descriptor = os.open(os.path.expanduser(self._value), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                mode = os.fstat(descriptor).st_mode
                key = SecretKey.of_content(_content(file))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path"
            name = f" '{printable(os.fsdecode(self._value))}'" if _is_surely_path(self._value) else ""
            raise_from(EncryptionKeyError(f"the key file{name} cannot be read: {why}", hint=KEY_HINT), None)
        where = f"the key file '{printable(os.fsdecode(self._value))}'"
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            _log.warning("%s can be read by every user of this machine: chmod 600", where)
        key = _decoded(key, where)
        if not stat.S_ISREG(mode):
            self._of_pipe.append(key)
        return key

    def __repr__(self) -> str:
        return "KeySource(…)"


def _content(file: io.FileIO) -> bytes:
    """Read a key file, or what is written to a pipe until it is closed, which may take a while, but not for ever."""
    ready, end_s, content = select.poll(), time.monotonic() + PIPE_S, b""
    ready.register(file, select.POLLIN)
    while len(content) <= MOST_KEY_FILE_BYTES:
        if not ready.poll(max(0.0, end_s - time.monotonic()) * 1000):
            raise OSError(errno.ETIMEDOUT, f"nobody wrote a key into it, and closed it, for {PIPE_S:g} s")
        piece = file.read(MOST_KEY_FILE_BYTES + 1 - len(content))
        if not piece:
            return content
        content += piece
    return content


def _is_surely_path(value: str | os.PathLike[str]) -> bool:
    """Say whether a text is a path and no key: its folder exists, and it does not look like a key with a slash."""
    text = os.fsdecode(value)
    try:
        has_folder = bool(os.path.dirname(text)) and os.path.isdir(os.path.dirname(os.path.expanduser(text)))
    except ValueError:  # a zero byte
        return False
    return has_folder and not _LIKE_A_KEY.fullmatch(text)


def check_lone_context(key: Any, context: str | None) -> None:
    """Refuse a context without a key: nothing would be compared with it."""
    if context is not None and key is None:
        hint = "Give key= too (on the command line --key-file), or leave the context out"
        raise UsageError("context= names what a key was used for, and so needs key=", hint=hint)


def _of_environment(name: str) -> SecretKey:
    if not os.environ.get(name):
        raise EncryptionKeyError(f"the environment variable {quoted(name)} with the key is not set", hint=KEY_HINT)
    return _decoded(SecretKey.of_text(os.environ.get(name)), f"the environment variable {quoted(name)}")


def _decoded(key: SecretKey, where: str) -> SecretKey:
    if key.problem is not None:
        hint = "Write 64 hexadecimal digits, or base64: openssl rand -hex 32"
        raise EncryptionKeyError(f"{where} does not hold a key of {KEY_BYTES} bytes that nobody can guess", hint=hint)
    return key


def _wants(key_id: str, why: str) -> str:
    return f"the checkpoint is encrypted with key {quoted(key_id)}, which {why}"


def _of_service(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StreamerError:
        raise
    except Exception as error:
        raise EncryptionKeyError(f"{what} raised {type(error).__name__}", hint="Its cause says more") from error
