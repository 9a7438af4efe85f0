"""The errors of requests about objects that got no answer: one table for all storages.

Guarantees: a message names host and port, and no other part of a URL. The errors have no ``uri`` yet: `answered` sets
it.
"""

from __future__ import annotations

import errno
from urllib.parse import urlsplit

from streamer._native import Exchange, ReadError
from streamer.backends.client.answer_times import HOW_TO_WAIT, TOO_SLOW
from streamer.backends.client.answer_values import quoted_start
from streamer.backends.client.error_rows import MAY_BE_PLAIN, MAY_BE_TLS, is_plain_server_in, refusal_of_proxy
from streamer.core.engine.native_errors import error_from_native
from streamer.core.errors import (
    ConnectError,
    OptionError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
)
from streamer.core.outages.transient import UNKNOWN_HOST
from streamer.core.quoting import printable, quoted
from streamer.core.store.certificates import flaw_in
from streamer.core.store.proxies import advice_about, named_by, place_of

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert and a handshake begin like this
_CHECK_PLACE = "Check host and port, that the server runs, and the network"


def failure_of(
    native: ReadError, url: str, exchange: Exchange | None = None, ca_option: str = "", proxy: str = ""
) -> StreamerError:
    """Make the error for a failed request, and name the proxy through which it was sent, if any."""
    error = _failure_of(native, url, exchange, ca_option)
    if isinstance(error, StorageError):
        error.elapsed_s = native.elapsed_s
        error.is_of_proxy = native.is_of_proxy
        if proxy and not (native.is_of_proxy or native.http_status):
            place = printable(place_of(proxy))
            error.hint = f"{error.hint}. The request goes through a proxy: {named_by(place)} names {place}"
    return error


def _failure_of(native: ReadError, url: str, exchange: Exchange | None, ca_option: str) -> StreamerError:
    if native.is_of_proxy:
        return _of_proxy(native)
    if exchange is not None and exchange.was_connected and native.code == "http_status":
        return _not_http(exchange.strange_start)
    if native.code == "tls":
        return _of_tls(native.detail, ca_option)
    if native.code == "timeout":
        return silent()
    if native.code == "unknown_host":
        host = urlsplit(url).hostname or ""
        return ConnectError(
            f"There is no host {quoted(host)}: its name stands for no address",
            hint="Check the host's name in the URL, the endpoint or HTTPS_PROXY",
            code=UNKNOWN_HOST,
        )
    if native.code == "endless_headers":
        hint = "Check the endpoint and the proxy before it: a storage's headers have a few KB"
        return StorageError("The headers of the server's answer do not end", hint=hint)
    if native.code == "http_status":
        return OptionError("The URL cannot be requested", hint="Check the URL, and the URL of the proxy")
    if native.code != "connect":
        return error_from_native(native, uri=None, object_size=None)
    if exchange is not None and not exchange.was_connected:
        refuses = ", which refuses it" if native.os_error == errno.ECONNREFUSED else ""
        return ConnectError(f"No connection to the server at {_place_of(url)}{refuses}", hint=_CHECK_PLACE)
    is_plain = url.startswith("http:") and exchange is not None
    hint = f"Check that it runs. {MAY_BE_TLS}" if is_plain else "Check that it runs, and the proxy on the way to it"
    return ConnectError("The server broke off the connection", hint=hint)


def silent() -> TransferTimeoutError:
    """Make the error for an answer that did not begin, or stopped in the middle."""
    return TransferTimeoutError("The server did not answer in time", hint=HOW_TO_WAIT)


def too_slow() -> TransferTimeoutError:
    """Make the error for a body that began to arrive, but was not complete in time."""
    return TransferTimeoutError("The server sends its answer too slowly", hint=TOO_SLOW)


def compressed(status: int) -> StorageError:
    """Make the error for an answer that is compressed; ``Accept-Encoding: identity`` was sent."""
    return StorageError(
        "The server compresses its answer, though it was asked not to",
        status=status,
        hint="Turn compression off, in the server or in the proxy before it",
    )


def ambiguous(status: int) -> StorageError:
    """Make the error for an answer with two different lengths (RFC 9112, 6.3)."""
    return StorageError(
        "The server sends two lengths of its answer, which differ",
        status=status,
        hint="Repair the server or the proxy before it: at least one of the lengths is wrong",
    )


def too_long(status: int, most_bytes: int) -> StorageError:
    """Make the error for a body that is longer than allowed."""
    return StorageError(
        f"The server's answer to a request about objects has more than {most_bytes} bytes",
        status=status,
        hint="Check the URL and endpoint, or raise answer_bytes in Options",
    )


def _of_proxy(native: ReadError) -> StorageError:
    if native.http_status:
        return refusal_of_proxy(native.http_status, native.proxy).error(None, status=native.http_status)
    return ConnectError(f"No connection to the proxy at {native.proxy}", hint=advice_about(None, native.proxy))


def _of_tls(detail: str, ca_option: str) -> TlsError:
    if is_plain_server_in(detail):
        return TlsError("The TLS handshake failed", hint=MAY_BE_PLAIN)
    flaw = flaw_in(detail)
    if flaw is None:
        named = f"{ca_option}, or, if unset, " if ca_option else ""
        return TlsError("The TLS handshake failed", hint=f"For a private CA: {named}SSL_CERT_FILE=/path/ca.pem")
    return TlsError(f"The TLS handshake failed: {flaw.what}", hint=flaw.hint)


def _not_http(start: bytes) -> StorageError:
    is_tls = start.startswith(_TLS_RECORDS)
    quote = f": {quoted_start(start)}" if start and not is_tls else ""
    hint = MAY_BE_TLS if is_tls else "Check host and port: another service may listen there"
    return StorageError(f"The server answers with something that is not HTTP{quote}", hint=hint)


def _place_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
