"""Maps the engine's errors to the public error tree; no other module does."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, NamedTuple

from streamer.core import errors
from streamer.core.quoting import quoted
from streamer.core.store.parallel import NO_THREAD_HINT

if TYPE_CHECKING:
    from streamer._native import ReadError


HOW_TO_STORE = (
    "If the object is stored so (its Content-Encoding), ranges of it cannot be read: upload it without compression, or "
    "download and decompress it; otherwise turn compression off, in the server or in the proxy before it"
)
_OF_COMPRESSION = "encoded the range|stored compressed"  # in native/http/range_response.cc


class _Row(NamedTuple):
    error: type[errors.StorageError]
    hint: str


_TABLE: dict[str, _Row] = {
    "not_found": _Row(errors.ObjectNotFoundError, "Check the name, and that the object was not deleted meanwhile"),
    "access_denied": _Row(errors.AccessDeniedError, "These credentials may not read it; ask for read permission"),
    "credentials": _Row(errors.CredentialsError, "Check the credentials, the endpoint and this machine's clock"),
    "credentials_expired": _Row(errors.CredentialsError, "Renew the session token and load again"),
    "clock_skew": _Row(errors.CredentialsError, "Set this machine's clock"),
    "truncated": _Row(errors.TruncatedError, "Upload or download the file again"),
    "changed": _Row(errors.ChangedError, "Load again, and do not overwrite a checkpoint while it is read"),
    "range_response": _Row(errors.RangeResponseError, "The server or a proxy before it does not honour byte ranges"),
    "endless_headers": _Row(
        errors.RangeResponseError, "Check the endpoint and the proxy before it: a storage's headers have a few KB"
    ),
    "redirect": _Row(errors.RedirectError, "Give the final endpoint or the bucket's own region"),
    "http_status": _Row(errors.HttpStatusError, "Check the URL, the endpoint and the proxy before it"),
    "object_failure": _Row(
        errors.HttpStatusError, "Check this object on the server, and its log; upload the object again if it is damaged"
    ),
    "connect": _Row(errors.ConnectError, "Check the endpoint, the proxy settings and that the server runs"),
    "unknown_host": _Row(errors.ConnectError, "Check the host's name in the URL or endpoint"),
    "tls": _Row(errors.TlsError, "Give the server's CA: SSL_CERT_FILE, AWS_CA_BUNDLE or the store's verify option"),
    "timeout": _Row(errors.TransferTimeoutError, "Raise the time-out in Options if the storage is this slow"),
    "leaves_folder": _Row(
        errors.AccessDeniedError, "storage_options={'symlinks': 'follow'} allows it; 'inside' was asked for"
    ),
    "io": _Row(errors.StorageError, "Check the path and the disk; the kernel's log (dmesg) may tell more"),
    "source": _Row(errors.StorageError, "Its cause says more"),
}

# Answers to a read of an archived object. Keys and rights are in order, so the advice of a refusal would mislead. S3's
# code is also that of other servers with its protocol; Azure's codes come with status 409.
ARCHIVED = frozenset({"BlobArchived", "BlobBeingRehydrated", "InvalidObjectState"})
IS_ARCHIVED = "The object is archived, or is still being restored"
HOW_TO_RESTORE = (
    "Restore it and wait until that has ended (S3: restore-object; Azure: rehydrate it to the hot or cool tier), or "
    "keep the lifecycle rules of the storage from archiving it"
)

NO_FILE_HINT = "Raise the limit of open files (ulimit -n), or read with fewer threads and requests: see Options"
_HINTS = {
    errno.EMFILE: NO_FILE_HINT,
    errno.ENFILE: "This machine has no file left to open: raise fs.file-max, or close some",
}


_BUSY = (429, 500, 502, 503, 504)
_BUSY_HINT = "Wait until the server works again, or raise block_deadline_s; lower http_in_flight if it throttles"

# For a protocol without proxies and certificates.
_WITHOUT_PROXY = {"connect": "Check the server's name, port and version, the firewall, and that the server runs"}

_DEVICE_HINTS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "Lower pinned_bytes in Options, or free memory of this machine",
    "CUDA_ERROR_NO_DEVICE": "Check CUDA_VISIBLE_DEVICES and nvidia-smi",
    "CUDA_ERROR_INVALID_DEVICE": "Check CUDA_VISIBLE_DEVICES and nvidia-smi",
    "CUDA_ERROR_NOT_FOUND": "Install NVIDIA's driver, or start the container with access to the GPU",
    "CUDA_ERROR_NOT_INITIALIZED": 'Start workers with multiprocessing.get_context("spawn")',
}
_NO_MEMORY_HINT = "Lower memory_limit_bytes, let go of tensors that were loaded, or give the process more memory"
_LOST_DEVICE_HINT = "The device or an earlier kernel of this process failed: start the process again, look at dmesg"


def error_from_native(
    native: ReadError, *, uri: str | None, object_size: int | None, is_http: bool = True
) -> errors.StreamerError:
    """Make the exception for an error of the engine, with all its details."""
    if native.code == "out_of_memory":
        return errors.OutOfMemoryError(
            native.detail,
            uri=uri,
            hint=NO_THREAD_HINT if native.os_error == errno.EAGAIN else _NO_MEMORY_HINT,  # pthread_create(3)
            requested_bytes=native.end - native.begin or None,
        )
    if native.code == "device":
        hint = _DEVICE_HINTS.get(native.storage_code, _LOST_DEVICE_HINT)
        return errors.DeviceError(native.detail, uri=uri, hint=hint, code=native.storage_code)
    is_archived = native.storage_code in ARCHIVED
    error = (errors.AccessDeniedError if is_archived else _TABLE[native.code].error)(
        IS_ARCHIVED if is_archived else native.detail,
        uri=uri,
        hint=HOW_TO_RESTORE if is_archived else _hint_for(native, is_http),
        byte_range=(native.begin, native.end) if native.end > native.begin else None,
        object_size=object_size,
        status=native.http_status or None,
        code=native.storage_code or errno.errorcode.get(native.os_error),
        request_id=native.request_id or None,
        attempts=native.attempts,
        elapsed_s=native.elapsed_s,
    )
    error.is_of_proxy = native.is_of_proxy
    if native.proxy:
        from streamer.core.store.proxies import suspect_proxy  # noqa: PLC0415 (a load over HTTP has imported it)

        suspect_proxy(error, lambda: native.proxy)
    return error


def _hint_for(native: ReadError, is_http: bool) -> str:
    if native.os_error in _HINTS:
        return _HINTS[native.os_error]
    if native.is_of_proxy:
        from streamer.core.store.proxies import advice_about  # noqa: PLC0415 (as above)

        return advice_about(native.http_status or None, native.proxy)
    if not is_http and native.code in _WITHOUT_PROXY:
        return _WITHOUT_PROXY[native.code]
    if native.http_status in _BUSY and native.code != "object_failure":
        return _BUSY_HINT
    if native.code == "range_response" and re.search(_OF_COMPRESSION, native.detail):
        return HOW_TO_STORE
    if native.code != "tls":
        return _TABLE[native.code].hint
    from streamer.core.store.certificates import flaw_in  # noqa: PLC0415 (as above)

    flaw = flaw_in(native.detail)
    return flaw.hint if flaw else _TABLE["tls"].hint


def checksum_error(native: ReadError, tensor: str | None, *, uri: str, object_size: int | None) -> errors.ChecksumError:
    """Make the error for bytes with a wrong checksum, with the tensor's name; the engine knows only its number."""
    what = f"tensor {quoted(tensor)}" if tensor is not None else "the range"
    is_of_answer = native.http_status != 0
    is_of_archive = native.algorithm == "crc32"  # a manifest has CRC32C
    whose = "the server's" if is_of_answer else "its archive's" if is_of_archive else "its manifest's"
    hint = "Upload or download this file again"
    if is_of_answer:
        hint = "A proxy, a network card or this machine's memory changes bytes; read it from another one"
    elif not is_of_archive:
        hint += "; if it was changed on purpose, write the manifest anew"
    return errors.ChecksumError(
        f"the {native.algorithm} of {what} mismatches {whose}, read twice: {native.expected} expected,"
        f" {native.found} found",
        uri=uri,
        hint=hint,
        byte_range=(native.begin, native.end),
        object_size=object_size,
        tensor=tensor,
        algorithm=native.algorithm,
        expected=native.expected,
        found=native.found,
    )


def tampered_error(native: ReadError, tensor: str | None, *, uri: str) -> errors.TamperedError:
    """Make the error for a changed encrypted tensor, with the tensor's name; the engine knows only its number."""
    what = f"tensor {quoted(tensor)}" if tensor is not None else "a range"
    return errors.TamperedError(
        f"{what} is not as it was saved (bytes {native.begin}-{native.end - 1}): {native.detail}",
        uri=uri,
        hint="Do not use it; get it again from where it was saved",
    )
