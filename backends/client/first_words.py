"""How an answer begins that is none of the protocol that was spoken: often enough to see who answered. Pure.

Guarantees: one short line, quoted, of letters. Whoever answers may repeat what he was told: what is as long as a key, a
token or a signature, and has none of the marks of a sentence, is left out.
"""

from __future__ import annotations

import re

from streamer.core.quoting import quoted

__all__ = ["first_words"]

LOOKED_AT_BYTES = 4096
SHOWN_CHARACTERS = 60
SHORTEST_SECRET = 16  # as native/http/secrets.h has it

_MAY_BE_SECRET = re.compile(rf"[\w+/=.~%:-]{{{SHORTEST_SECRET},}}", re.ASCII)
_BLANKS = re.compile(r"\s+")


def first_words(body: bytes) -> str:
    """Quote them.

    Example:
        >>> print(first_words(b"220 mail ESMTP"), first_words(b"<p>token: hf_aBcDeFgHiJkLmNoP</p>"))
        '220 mail ESMTP' '<p>token: ***</p>'
    """
    text = body[:LOOKED_AT_BYTES].decode(errors="replace").lstrip("\ufeff")
    if len(body) > LOOKED_AT_BYTES:  # half of a secret may be too short to be taken for one
        text = text[:-SHORTEST_SECRET]
    shown = _MAY_BE_SECRET.sub("***", _BLANKS.sub(" ", text).strip())
    return quoted(shown[:SHOWN_CHARACTERS]) + ("…" if len(shown) > SHOWN_CHARACTERS else "")
