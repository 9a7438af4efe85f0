"""What is wrong with a server's certificate, where it is not that its authority is unknown. Pure."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from streamer.core.causes import with_causes

__all__ = ["Flaw", "flaw_in", "flaw_of", "is_untrusted"]


class Flaw(NamedTuple):
    """What is wrong, and what to do about it.

    Attributes:
        what: A part of a sentence.
        hint: What to do.
        codes: OpenSSL's numbers of it (X509_V_ERR_…).
        text: What libcurl's messages of it have in common.
    """

    what: str
    hint: str
    codes: tuple[int, ...]
    text: str


_FLAWS = (
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
        (62, 64),  # of a name, of an IP address
        "subject name matches target",
    ),
)


def is_untrusted(error: BaseException) -> bool:
    """Whether a TLS handshake of Python's failed because of the server's certificate: it would again."""
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in with_causes(error))


def flaw_of(error: BaseException) -> Flaw | None:
    """Find why a TLS handshake of Python's failed; None where an unknown authority, or something else, is to blame."""
    verifications = (each for each in with_causes(error) if isinstance(each, ssl.SSLCertVerificationError))
    codes = {getattr(each, "verify_code", None) for each in verifications}  # aiohttp's subclass has none
    return next((flaw for flaw in _FLAWS if codes & {*flaw.codes}), None)


def flaw_in(message: str) -> Flaw | None:
    """Find the same in a message of libcurl.

    Example:
        >>> flaw_in("SSL certificate problem: certificate has expired").what
        'its certificate has expired'
    """
    return next((flaw for flaw in _FLAWS if flaw.text in message), None)
