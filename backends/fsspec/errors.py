"""Translates exceptions of fsspec file systems into this package's errors.

Guarantees: no text of the exception enters a message, because file systems put whole URLs into their messages; the one
exception is fsspec's "please install". The cause is chained, unless the user's URL holds a secret that the cause would
repeat.
"""

from __future__ import annotations

import errno
import re
from difflib import SequenceMatcher
from typing import NoReturn

import fsspec
from fsspec.exceptions import FSTimeoutError

from streamer.backends.builtin_storages import BUILTIN_SCHEMES, install_hint
from streamer.backends.client.error_rows import (
    ARCHIVED_ROWS,
    ErrorRow,
    ExceptionTable,
    is_unknown_host,
    row_for,
    row_of_status,
    unknown_host,
)
from streamer.core.causes import raise_from, with_causes
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    ObjectNotFoundError,
    OptionError,
    RedirectError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
    UnknownSchemeError,
)
from streamer.core.folders.private_folders import no_temporary_folder
from streamer.core.store.certificates import is_untrusted

LEAST_SIMILARITY = 0.5  # s4 and s3 are this similar
LEAST_SIMILARITY_OF_OTHERS = 0.7  # for schemes that begin with another letter

_OTHER_NAMES = {"azure": "az", "gcloud": "gs", "hub": "hf", "huggingface": "hf", "minio": "s3"}

_CHECK_LOGIN = "Check the login in storage_options, and what it may read"
_CHECK_NAME = "Check the URL, and what lies in the folder or archive"
_CAUSE = "The exception's cause has details unless it may hold a secret; see the documentation of that file system"
_CHECK_NETWORK = "Check host, port and network, and that the server runs"

# The name of an argument is no secret, so it is quoted. Only constructors get user options, so other calls do not
# match.
_UNEXPECTED = re.compile(r"\b__init__\(\) got an unexpected keyword argument '(\w{1,80})'", re.ASCII)

_STATUSES: dict[int, ErrorRow[StorageError]] = {
    401: ErrorRow(CredentialsError, "The server wants other credentials", _CHECK_LOGIN),
    403: ErrorRow(AccessDeniedError, "The server refuses access", _CHECK_LOGIN),
    404: ErrorRow(ObjectNotFoundError, "There is no such file", _CHECK_NAME),
}

_LOGIN_REFUSED = ErrorRow(CredentialsError, "The storage does not accept the user, password or key", _CHECK_LOGIN)

_TLS_FAILED = ErrorRow(
    TlsError, "The TLS handshake with the storage failed", "For a private CA: SSL_CERT_FILE=/path/ca.pem, or an option"
)
_CHECK_ARCHIVE = "Check its name, and download or upload it again"

# By class name, because the libraries may not be installed: archives, then paramiko and smbprotocol, then botocore.
_NAMES: dict[str, ErrorRow[StorageError]] = {
    "BadZipFile": ErrorRow(StorageError, "This is no zip archive, or was cut short", _CHECK_ARCHIVE),
    "ReadError": ErrorRow(StorageError, "This is no tar archive, or was cut short", _CHECK_ARCHIVE),
    "AuthenticationException": _LOGIN_REFUSED,
    "BadAuthenticationType": _LOGIN_REFUSED,
    "LogonFailure": _LOGIN_REFUSED,
    "ConnectTimeoutError": ErrorRow(TransferTimeoutError, "The storage did not answer in time", _CHECK_NETWORK),
    "ReadTimeoutError": ErrorRow(TransferTimeoutError, "The storage did not answer in time", _CHECK_NETWORK),
    "EndpointConnectionError": ErrorRow(ConnectError, "No connection to the storage", _CHECK_NETWORK),
    "ConnectionClosedError": ErrorRow(ConnectError, "The storage broke off the connection", _CHECK_NETWORK),
    "HTTPClientError": ErrorRow(ConnectError, "No connection to the storage", _CHECK_NETWORK),
}

_EXCEPTIONS: ExceptionTable[StorageError] = {
    (FileNotFoundError, NotADirectoryError): ErrorRow(ObjectNotFoundError, "There is no such file", _CHECK_NAME),
    (IsADirectoryError,): ErrorRow(ObjectNotFoundError, "This is a folder, not a file", _CHECK_NAME),
    (PermissionError,): ErrorRow(AccessDeniedError, "The storage refuses access", _CHECK_LOGIN),
    (FSTimeoutError, TimeoutError): ErrorRow(
        TransferTimeoutError, "The storage did not answer in time", _CHECK_NETWORK
    ),
    (ConnectionError,): ErrorRow(ConnectError, "No connection to the storage", _CHECK_NETWORK),
    (UnicodeEncodeError,): ErrorRow(
        StorageError, "The locale of this process cannot write the path", "Set PYTHONUTF8=1 or LC_ALL=C.UTF-8"
    ),
}


def raise_opening_error(error: Exception, scheme: str, uri: str, *, hides_cause: bool) -> NoReturn:
    """Raise the error for a URL whose file system could not be made."""
    translated, cause = _opening_error(error, scheme, uri), None if hides_cause else error
    del error
    raise_from(translated, cause)


def raise_storage_error(
    error: Exception, uri: str, *, hides_cause: bool, byte_range: tuple[int, int] | None = None
) -> NoReturn:
    """Raise an exception of a file system as one of this package."""
    translated, cause = _storage_error(error, uri, byte_range), None if hides_cause else error
    del error
    raise_from(translated, cause)


def _opening_error(error: Exception, scheme: str, uri: str) -> StreamerError:
    unknown = _unknown_scheme(error, uri) or scheme
    if isinstance(error, ImportError) or "Protocol not known" in str(error):
        where = " in this chain" if "::" in uri else ""
        hint = _install_hint(error, unknown)
        return UnknownSchemeError(f"There is no backend for {unknown}://{where}", uri=uri, hint=hint)
    refused = _refused_option(error, f"The {scheme} file system", uri)
    if refused is not None:
        return refused
    if isinstance(error, (TypeError, ValueError, KeyError)):
        hint = "Its cause says which; see the documentation of that file system"
        return OptionError(f"The {scheme} file system refuses the URL or its storage options", uri=uri, hint=hint)
    return _storage_error(error, uri, None)


def _storage_error(error: Exception, uri: str, byte_range: tuple[int, int] | None) -> StreamerError:
    error = _reason(error)
    # Python raises this error if a cache finds no folder for temporary files.
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        nowhere = no_temporary_folder(error)
        nowhere.uri = uri
        return nowhere
    refused = _refused_option(error, "A file system of this URL", uri)  # s3fs passes options on at the first request
    if refused is not None:
        return refused
    if (code := next(filter(ARCHIVED_ROWS.get, map(_code_in, with_causes(error))), None)) is not None:
        return ARCHIVED_ROWS[code].error(uri, byte_range=byte_range, code=code)
    if isinstance(error, RedirectError):  # our own error, raised inside of fsspec's client
        return RedirectError(error.message, uri=uri, hint=error.hint, byte_range=byte_range)
    if is_untrusted(error) or type(error).__name__ == "SSLError":
        return _TLS_FAILED.error(uri, byte_range=byte_range)
    if is_unknown_host(error):
        return unknown_host(error, uri, _CHECK_NETWORK, byte_range=byte_range)
    status = getattr(error, "status", None)  # exceptions of aiohttp have it
    if isinstance(status, int):
        row = _STATUSES.get(status) or row_of_status(status, "The server could not answer")
        return row.error(uri, byte_range=byte_range, status=status)
    number = error.errno if isinstance(error, OSError) else None
    code = errno.errorcode.get(number or 0)
    builtin = OSError(number, "") if number else error  # the builtin class, because aiohttp has its own classes
    name = type(error).__name__
    listed = row_for(error, _EXCEPTIONS) or row_for(builtin, _EXCEPTIONS) or _NAMES.get(name)
    row = listed or ErrorRow(StorageError, f"The file system failed with {name}", _CAUSE)
    return row.error(uri, byte_range=byte_range, code=code)


def _code_in(error: BaseException) -> str:
    """Return the storage's error code in an exception of botocore or azure-core; empty for others."""
    answer = getattr(error, "response", None)
    of_botocore = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    code = of_botocore or getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _refused_option(error: Exception, who: str, uri: str) -> OptionError | None:
    """Make the error for an option that a constructor does not have; None if this was not the failure."""
    named = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if named is None:
        return None
    return OptionError(
        f"{who} has no storage option {named[1]!r}", uri=uri, hint="See the documentation of that file system"
    )


def _reason(error: Exception) -> Exception:
    """Return the cause of a "not found" if the cause says more: fsspec's HTTP raises "not found" for any failure."""
    cause = error.__cause__
    is_clearer = isinstance(cause, OSError) or isinstance(getattr(cause, "status", None), int)
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and is_clearer else error


def _unknown_scheme(error: Exception, uri: str) -> str | None:
    """Return the scheme in a chain that is unknown to fsspec."""
    if isinstance(error, ImportError):
        return None
    schemes = (part.partition("://")[0] for part in uri.split("::"))
    return next((scheme for scheme in schemes if scheme not in fsspec.available_protocols()), None)


def _install_hint(error: Exception, scheme: str) -> str:
    hint = install_hint(scheme)
    if hint is not None:
        return hint
    if isinstance(error, ImportError):  # its text is fsspec's hint, which names the package
        return str(error)
    install = "nstall a package that registers the scheme with fsspec, or with the entry points streamer.backends"
    near = _near_scheme(scheme)
    return f"Did you mean {near}://? Otherwise i{install}" if near else f"I{install}"


def _near_scheme(scheme: str) -> str | None:
    """Return the scheme that was probably meant; between equally similar schemes, the same first letter decides."""

    def similarity(other: str) -> tuple[float, bool, str]:
        return SequenceMatcher(None, scheme.lower(), other).ratio(), scheme[:1].lower() == other[0], other

    ratio, begins_alike, nearest = max(map(similarity, {*BUILTIN_SCHEMES, *fsspec.available_protocols()}))
    is_near = ratio >= (LEAST_SIMILARITY if begins_alike else LEAST_SIMILARITY_OF_OTHERS)
    return _OTHER_NAMES.get(scheme.lower()) or (nearest if is_near else None)
