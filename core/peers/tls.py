"""TLS between peers, with certificates of a private authority that only they have.

Both sides show their certificate, and accept any that the authority has signed, whatever host it names: pods have
addresses that no certificate can name before they start. So whoever has such a certificate may be any of the peers.
The files are read for each connection, so renewed ones are used at once.
"""

from __future__ import annotations

import ssl

from streamer.core.errors import OptionError
from streamer.core.peers.names import TLS_DIR, TlsFiles


def context_of(files: TlsFiles, *, is_server: bool = False) -> ssl.SSLContext:
    """Return the context of one side; raises OptionError if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.certificate, files.key, password="")  # OpenSSL would prompt for one
        context.load_verify_locations(files.ca)
    except OSError as error:
        raise OptionError(
            f"{TLS_DIR} holds no certificate of a peer with its key and authority: {error.strerror or error}",
            hint=f"Put PEM files there: {', '.join(files)}",
        ) from error
    return context


def what_failed(error: OSError) -> str | None:
    """Say why a handshake failed; None if another thing did."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of the authority in {TLS_DIR}: {error.verify_message}"
    return f"TLS failed: {error.reason}" if isinstance(error, ssl.SSLError) else None
