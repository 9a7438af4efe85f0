"""Every error this package raises, and nothing else.

The tree (each class is also the builtin a caller would expect)::

    StreamerError
    ├── UsageError (ValueError)                 the caller's mistake; no byte was read
    │   ├── OptionError                         an option out of its bounds, or an unknown one
    │   ├── UnknownSchemeError                  no backend for this URL; names the extra to install
    │   ├── UnknownDeviceError (DeviceError)    torch does not know this device, or it is not here
    │   ├── UnknownTensorError (KeyError)       a name in ``names`` that no shard holds
    │   ├── TensorIndexError (IndexError)       an index that a tensor does not have
    │   ├── TargetError                         load_into: wrong shape, dtype, or unmatched names
    │   ├── EncryptionKeyError                  no key, a wrong key, or one that cannot be used
    │   └── UnsupportedDtypeError (TypeError)   the framework has no such dtype
    ├── FormatError (ValueError)                the checkpoint itself is wrong
    │   ├── HeaderError                         malformed safetensors header
    │   ├── ShardIndexError                     malformed index, or one that leaves its folder
    │   ├── ManifestError                       malformed manifest, or one of another checkpoint
    │   └── TamperedError                       an encrypted checkpoint is not as it was saved
    ├── StorageError (OSError)                  the storage refused, failed or did not answer
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   │   └── MissingShardError               an index, or numbers, name a shard that does not exist
    │   ├── AccessDeniedError (PermissionError)
    │   │   └── CredentialsError                missing, wrong or expired credentials
    │   ├── TruncatedError (EOFError)           fewer bytes than the size promised
    │   ├── ChangedError                        the object was replaced during the load
    │   ├── ChecksumError                       the bytes mismatch a digest
    │   ├── RangeResponseError                  the server's answer is not the range asked for
    │   ├── RedirectError                       a redirect that must not be followed
    │   ├── HttpStatusError                     any other HTTP status
    │   ├── ConnectError (ConnectionError)      DNS, refused, reset
    │   ├── TlsError (ConnectionError)          certificate or handshake
    │   └── TransferTimeoutError (TimeoutError) connect, first byte or stall
    ├── OutOfMemoryError (MemoryError)          this machine has no memory or thread for it
    ├── DeviceError (RuntimeError)              the accelerator refused
    ├── PluginError (RuntimeError)              a plug-in broke its contract; names it
    ├── GroupError (RuntimeError)               another rank of the group failed, left or is silent
    ├── LoadCancelledError (RuntimeError)       the stream was closed under its consumer
    └── EngineError (RuntimeError)              our bug, or a forked child using its parent's stream

An error may contain text from servers, file names and checkpoints. Code that raises one need not escape it:
``str(error)`` and every text attribute are printable on a terminal, and fit on one line of a log.
"""

from __future__ import annotations

from typing import Any

from streamer.core.quoting import printable


class StreamerError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: What happened, in one sentence.
        uri: URL of the object that was being read, without secrets, or None.
        hint: What to do about it, or None.
    """

    def __init__(self, message: str, *, uri: str | None = None, hint: str | None = None) -> None:
        super().__init__(printable(message))
        self.message = message
        self.uri = uri
        self.hint = hint

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, printable(value) if isinstance(value, str) else value)

    def __str__(self) -> str:
        return "".join(self._sentences())

    def _sentences(self) -> list[str]:
        # A short path without a slash, such as "dev", may be a part of another word of the message.
        is_shown = not self.uri or ("/" in self.uri and self.uri in self.message)
        where = "" if is_shown else f"{self.uri}: "
        hint = f". {self.hint}" if self.hint else ""
        return [where, self.message.rstrip("."), hint]


class UsageError(StreamerError, ValueError):
    """The call is wrong; nothing was read."""


class OptionError(UsageError):
    """An option is unknown or out of its bounds."""


class UnknownSchemeError(UsageError):
    """No backend is installed for the scheme of this URL."""


class UnknownTensorError(UsageError, KeyError):
    """No shard holds a requested tensor."""


class TensorIndexError(UsageError, IndexError):
    """An index of a tensor is out of bounds, or is not an index."""


class TargetError(UsageError):
    """A target of ``load_into`` does not fit the checkpoint."""


class EncryptionKeyError(UsageError):
    """An encrypted checkpoint needs a key, the key is not its key, or the key cannot be read."""


class UnsupportedDtypeError(UsageError, TypeError):
    """The checkpoint has a dtype that the chosen framework lacks."""


class FormatError(StreamerError, ValueError):
    """The checkpoint breaks the rules of its format."""


class HeaderError(FormatError):
    """A safetensors header is malformed or does not fit its file."""


class ShardIndexError(FormatError):
    """A ``*.safetensors.index.json`` is malformed, or names a shard that it may not name."""


class ManifestError(FormatError):
    """A manifest is malformed, or belongs to another checkpoint."""


class TamperedError(FormatError):
    """An encrypted checkpoint is not as it was saved: it is changed, mixed, incomplete, or not encrypted."""


class StorageError(StreamerError, OSError):
    """A storage refused, failed, or sent a wrong response.

    Attributes:
        byte_range: Half-open ``(begin, end)`` in the object, or None.
        object_size: Size of the object in bytes, or None if unknown.
        status: HTTP status, or None.
        code: The storage's own error code (``NoSuchKey``) or errno name (``ENOENT``), or None.
        request_id: The storage's request id, or None.
        attempts: Number of attempts at the range.
        elapsed_s: Seconds from the first attempt to the last.
        retry_after_s: Pause in seconds that the server demands before the next request, or 0.
        is_of_proxy: The proxy refused, or may have refused, so the server may not have received the request.
    """

    is_of_proxy = False

    def __init__(
        self,
        message: str,
        *,
        uri: str | None = None,
        hint: str | None = None,
        byte_range: tuple[int, int] | None = None,
        object_size: int | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        attempts: int = 1,
        elapsed_s: float = 0.0,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message, uri=uri, hint=hint)
        self.byte_range = byte_range
        self.object_size = object_size
        self.status = status
        self.code = code
        self.request_id = request_id
        self.attempts = attempts
        self.elapsed_s = elapsed_s
        self.retry_after_s = retry_after_s

    def _sentences(self) -> list[str]:
        where, message, hint = super()._sentences()
        facts = [
            self._range_text(),
            f"HTTP {self.status}" if self.status else None,
            self.code,
            f"request id {self.request_id}" if self.request_id else None,
            self._attempts_text(),
        ]
        details = ", ".join(fact for fact in facts if fact)
        return [where, message, f" ({details})" if details else "", hint]

    def _attempts_text(self) -> str | None:
        if self.attempts < 2:
            return None
        return f"{self.attempts} attempts" + (f" in {max(self.elapsed_s, 0.1):.1f} s" if self.elapsed_s else "")

    def _range_text(self) -> str | None:
        if self.byte_range is None:
            return None
        begin, end = self.byte_range
        of_size = f" of {self.object_size}" if self.object_size is not None else ""
        return f"bytes {begin}-{max(begin, end - 1)}{of_size}"


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The object, bucket or file does not exist."""


class MissingShardError(ObjectNotFoundError):
    """The checkpoint is damaged: its index, or the numbers of its shards, name a shard that does not exist."""


class AccessDeniedError(StorageError, PermissionError):
    """The storage denies access to these credentials, or to anonymous requests."""


class CredentialsError(AccessDeniedError):
    """Credentials are missing, wrong or expired.

    Attributes:
        may_come: The file, program or server that gives the credentials failed, and may give them a moment later.
    """

    may_come = False


class TruncatedError(StorageError, EOFError):
    """The object ends before the size that its storage or header states."""


class ChangedError(StorageError):
    """The object was replaced or rewritten while it was being read."""


class ChecksumError(StorageError):
    """The bytes mismatch the digest in the manifest or the storage's digest.

    Attributes:
        tensor: The tensor with the wrong bytes, or None if the digest is of a whole object.
        algorithm: ``crc32c``, ``crc64nvme``, ``sha256``, …
        expected: The digest of the correct bytes, in hexadecimal digits.
        found: The digest of the bytes that were read.
    """

    def __init__(
        self,
        message: str,
        *,
        tensor: str | None = None,
        algorithm: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.tensor = tensor
        self.algorithm = algorithm
        self.expected = expected
        self.found = found


class RangeResponseError(StorageError):
    """The server's response is not the requested range."""


class RedirectError(StorageError):
    """The server redirects, and following the redirect would leak credentials or change the scheme."""


class HttpStatusError(StorageError):
    """The server responded with an HTTP status that no other class covers."""


class ConnectError(StorageError, ConnectionError):
    """No connection: unknown host, refused, reset, or unreachable."""


class TlsError(StorageError, ConnectionError):
    """The TLS handshake failed or the certificate is not trusted."""


class TransferTimeoutError(StorageError, TimeoutError):
    """No connection, no first byte, or no progress within the time-out."""


class OutOfMemoryError(StreamerError, MemoryError):
    """The system has no memory for a tensor, or cannot start a thread.

    Attributes:
        requested_bytes: Bytes requested for a tensor, or None if the request was for something else.
    """

    def __init__(
        self, message: str, *, uri: str | None = None, hint: str | None = None, requested_bytes: int | None = None
    ) -> None:
        super().__init__(message, uri=uri, hint=hint)
        self.requested_bytes = requested_bytes


class DeviceError(StreamerError, RuntimeError):
    """The accelerator or its driver reported an error.

    Attributes:
        code: The driver's name of the error (``CUDA_ERROR_OUT_OF_MEMORY``), or None.
        requested_bytes: Memory that was requested and refused, or None.
        free_bytes: Memory that was free on the device then, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        uri: str | None = None,
        hint: str | None = None,
        code: str | None = None,
        requested_bytes: int | None = None,
        free_bytes: int | None = None,
    ) -> None:
        super().__init__(message, uri=uri, hint=hint)
        self.code = code
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes

    def _sentences(self) -> list[str]:
        where, message, hint = super()._sentences()
        return [where, message, f" ({self.code})" if self.code else "", hint]


class UnknownDeviceError(UsageError, DeviceError):
    """The framework does not know this device, or it is not available here."""


class PluginError(StreamerError, RuntimeError):
    """A plug-in could not be loaded, or broke its contract.

    Attributes:
        scheme: The URL scheme that it serves, or None if no single plug-in is the cause.
        distribution: Name of the distribution that contains it, or None.
        version: Version of that distribution, or None.
        method: The method called (``streamer_open_store``, ``find``, ``read_into``, …), or None before the first call.
    """

    def __init__(
        self,
        message: str,
        *,
        uri: str | None = None,
        hint: str | None = None,
        scheme: str | None = None,
        distribution: str | None = None,
        version: str | None = None,
        method: str | None = None,
    ) -> None:
        super().__init__(message, uri=uri, hint=hint)
        self.scheme = scheme
        self.distribution = distribution
        self.version = version
        self.method = method


class GroupError(StreamerError, RuntimeError):
    """Another rank of the group failed, left the load or is silent, so this rank cannot continue.

    Attributes:
        rank: The other rank's number in the group, or None if it is unknown.
    """

    def __init__(
        self, message: str, *, uri: str | None = None, hint: str | None = None, rank: int | None = None
    ) -> None:
        super().__init__(message, uri=uri, hint=hint)
        self.rank = rank


class LoadCancelledError(StreamerError, RuntimeError):
    """The stream was closed while its consumer was waiting."""


class EngineError(StreamerError, RuntimeError):
    """The engine is in an invalid state (a bug of this package), or belongs to the parent of a forked process."""
