"""Quotes the start of an answer in an unexpected protocol or format, so that the user sees which server it was. Pure.

Guarantees: the quote is one short printable line. A server may repeat the request: a run of characters as long as a
key, token or signature is replaced by ``***``.
"""

from __future__ import annotations

import re

from streamer.core.quoting import quoted

__all__ = ["quoted_start"]

LOOKED_AT_BYTES = 4096
SHOWN_CHARACTERS = 60
SHORTEST_SECRET = 16  # as in native/http/secrets.h

_MAY_BE_SECRET = re.compile(rf"[\w+/=.~%:-]{{{SHORTEST_SECRET},}}", re.ASCII)
_BLANKS = re.compile(r"\s+")


def quoted_start(body: bytes) -> str:
    """Quote the first words of a body.

    Example:
        >>> print(quoted_start(b"220 mail ESMTP"), quoted_start(b"<p>token: hf_aBcDeFgHiJkLmNoP</p>"))
        '220 mail ESMTP' '<p>token: ***</p>'
    """
    text = body[:LOOKED_AT_BYTES].decode(errors="replace").lstrip("\ufeff")
    if len(body) > LOOKED_AT_BYTES:  # the cut may leave a part of a secret that is too short to be recognised
        text = text[:-SHORTEST_SECRET]
    shown = _MAY_BE_SECRET.sub("***", _BLANKS.sub(" ", text).strip())
    return quoted(shown[:SHOWN_CHARACTERS]) + ("…" if len(shown) > SHOWN_CHARACTERS else "")
