"""Chooses the certificate authorities to trust by default: the same as in Python's own TLS."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

from streamer.core.errors import OptionError
from streamer.core.quoting import printable
from streamer.core.secrets.environment import variable

__all__ = ["check_client_certificate", "default_ca_file", "trust_in"]

# A wheel's libcurl was built on another machine, so its compiled-in path may not exist here. These are the usual places
# of distributions.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def default_ca_file() -> str:
    """Return the PEM bundle to trust: ``SSL_CERT_FILE``, else OpenSSL's, else the distribution's, else certifi's."""
    return variable("SSL_CERT_FILE") or _system_bundle()


def trust_in(ca_file: str = "") -> ssl.SSLContext:
    """Return the TLS context that trusts the authorities of a PEM bundle; without a name, of `default_ca_file`.

    The context is shared and must not be changed: making one takes 20 ms, and a load of many URIs opens many stores.

    Raises:
        OptionError: the file cannot be read, or is no PEM file.
    """
    path = ca_file or default_ca_file()
    try:
        return _trust_in(path, os.stat(path).st_mtime_ns if path else 0)
    except OSError as error:
        is_read = isinstance(error, ssl.SSLError)
        what = "holds no certificates in PEM form" if is_read else f"cannot be read: {error.strerror}"
        name = "SSL_CERT_FILE" if path == variable("SSL_CERT_FILE") else "the file"
        raise OptionError(
            f"The file of the certificates to trust {what}: {printable(path)}",
            hint=f"Let {name} be the CA's certificates, as PEM; without one, the system's are trusted",
        ) from error


def check_client_certificate(certificate: str, key: str | None = None) -> None:
    """Check the PEM files of a client certificate and of its key; None stands for a key in the same file.

    Raises:
        OptionError: the files cannot be read, hold no certificate with its key, or the key has a passphrase.
    """
    try:
        # Without this password OpenSSL would prompt for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password="")
    except OSError as error:
        is_read = isinstance(error, ssl.SSLError)
        what = (
            "is no certificate with its key, without a passphrase," if is_read else f"cannot be read: {error.strerror}"
        )
        raise OptionError(
            f"The client certificate {what}: {printable(certificate)}",
            hint="Name PEM files: one with both, or one of the certificate and one of its key",
        ) from error


@lru_cache(maxsize=16)
def _trust_in(path: str, changed_ns: int) -> ssl.SSLContext:
    del changed_ns  # a bundle that was replaced is read again
    return ssl.create_default_context(cafile=path or None)


@lru_cache(maxsize=1)
def _system_bundle() -> str:
    paths = ssl.get_default_verify_paths()
    for path in (paths.cafile, paths.openssl_cafile, *_BUNDLES):  # the first is blank if SSL_CERT_FILE is blank
        if path and os.path.isfile(path):
            return path
    try:
        import certifi  # noqa: PLC0415  only images without any system bundle need it
    except ImportError:
        return ""  # libcurl's own default
    return str(certifi.where())
