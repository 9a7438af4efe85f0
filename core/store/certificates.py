"""Recognises flaws of certificates, the server's or ours, other than an unknown authority. Pure."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from streamer.core.causes import with_causes

__all__ = ["Flaw", "demands_certificate", "flaw_in", "flaw_of", "is_untrusted"]


class Flaw(NamedTuple):
    """A flaw of a certificate, and what to do about it.

    Attributes:
        what: The flaw, as a part of a sentence.
        hint: What to do.
        codes: OpenSSL's numbers of the flaw (X509_V_ERR_…).
        text: Common text of libcurl's messages about the flaw.
    """

    what: str
    hint: str
    codes: tuple[int, ...]
    text: str


_NAME_YOURS = (
    "Name yours: for s3:// config_kwargs={'client_cert': (certificate, key)}, for https:// an ssl context (option ssl)"
)
# The server demands a client certificate (RFC 8446, 6.2); under TLS 1.2 it only reports that the handshake failed.
_DEMAND = Flaw("the server demands a client certificate", _NAME_YOURS, (), "alert certificate required")
_REFUSAL = Flaw(
    "the server ends the handshake, as one does that demands a client certificate",
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
        (62, 64),  # another name, another IP address
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
