"""Finds the certificate authorities to trust by default, and names the flaws of a certificate of a known authority.

The authorities are the same as in Python's own TLS.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import NamedTuple

from streamer.core.causes import with_causes
from streamer.core.errors import OptionError
from streamer.core.quoting import printable
from streamer.core.secrets.environment import variable

# A wheel's libcurl was built on another machine, so its compiled-in path may not exist here. These are the usual places
# of distributions.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


class Flaw(NamedTuple):
    """A flaw of a certificate, and what to do about it."""

    what: str  # the flaw, as a part of a sentence
    hint: str  # what to do
    codes: tuple[int, ...]  # openSSL's numbers of the flaw (X509_V_ERR_…)
    text: str  # common text of libcurl's messages about the flaw


_NAME_YOURS = (
    "Name yours: for s3:// config_kwargs={'client_cert': (certificate, key)}, for https:// an ssl context (option ssl)"
)
# The server demands a client certificate (RFC 8446, 6.2); under TLS 1.2 it only reports that the handshake failed.
_DEMAND = Flaw("the server demands a client certificate", _NAME_YOURS, (), "alert certificate required")
_REFUSAL = Flaw(
    "the server ends the handshake; servers that demand a client certificate do so",
    _NAME_YOURS,
    (),
    "alert handshake failure",
)
_DEMANDS = {"CERTIFICATE_REQUIRED": _DEMAND, "ALERT_HANDSHAKE_FAILURE": _REFUSAL}  # OpenSSL's names, without prefixes

_FLAWS = (
    _DEMAND,
    _REFUSAL,
    Flaw(
        "its certificate is not valid yet",
        "Set this machine's clock, or wait until the certificate is valid",
        (9,),
        "is not yet valid",
    ),
    Flaw(
        "its certificate has expired",
        "Have the server's certificate renewed; or set this machine's clock",
        (10,),
        "has expired",
    ),
    Flaw(
        "its certificate is for another host",
        "Use a name that the certificate has, or have one made for this name",
        (62, 64),  # the name or the IP address of the host mismatches
        "subject name matches target",
    ),
)


def is_untrusted(error: BaseException) -> bool:
    """Say whether a TLS handshake in Python failed because of the server's certificate; a retry would fail, too."""
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in with_causes(error))


def demands_certificate(error: BaseException) -> Flaw | None:
    """Return the flaw if a connection in Python failed because the server demands a client certificate, else None."""
    reasons = (str(getattr(each, "reason", "")) for each in with_causes(error) if isinstance(each, ssl.SSLError))
    return next((flaw for reason in reasons for end, flaw in _DEMANDS.items() if reason.endswith(end)), None)


def flaw_of(error: BaseException) -> Flaw | None:
    """Return the flaw that made a TLS handshake in Python fail; None for an unknown authority or any other cause."""
    if (demand := demands_certificate(error)) is not None:
        return demand
    verifications = (each for each in with_causes(error) if isinstance(each, ssl.SSLCertVerificationError))
    codes = {getattr(each, "verify_code", None) for each in verifications}  # aiohttp's subclass has no code
    return next((flaw for flaw in _FLAWS if codes & {*flaw.codes}), None)


def flaw_in(message: str) -> Flaw | None:
    """Return the flaw that a message of libcurl reports; None if it reports none.

    Example:
        >>> flaw_in("SSL certificate problem: certificate has expired").what
        'its certificate has expired'
    """
    return next((flaw for flaw in _FLAWS if flaw.text in message), None)


def default_ca_file() -> str:
    """Return the PEM bundle to trust: ``SSL_CERT_FILE``, else OpenSSL's, else the distribution's, else certifi's."""
    return variable("SSL_CERT_FILE") or _system_bundle()


def trust_in(ca_file: str = "") -> ssl.SSLContext:
    """Return the TLS context that trusts the authorities of a PEM bundle; without a name, of `default_ca_file`.

    The context is shared and must not be changed: making one takes 20 ms, and a load of many URIs opens many stores.
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
            hint=f"Set {name} to a PEM file of the CA's certificates; if unset, the system's CAs are trusted",
        ) from error


def check_client_certificate(certificate: str, key: str | None = None) -> None:
    """Check the PEM files of a client certificate and of its key; None stands for a key in the same file."""
    try:
        # Without this password OpenSSL would prompt for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password="")
    except OSError as error:
        is_read = isinstance(error, ssl.SSLError)
        what = "has no certificate with a key without a passphrase" if is_read else f"cannot be read: {error.strerror}"
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
        return ""  # libcurl then uses its own default
    return str(certifi.where())
