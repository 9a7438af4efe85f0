"""The secrets of peers, and the names of objects between them.

On the wire, an object is named by an HMAC, under the token, of all that decides its bytes: server, version, size, URL,
login and headers. A peer that has the token, and not the login of a bucket, can neither ask for the bucket's objects
nor learn which ones there are. No name says anything to who has not the token.
"""

from __future__ import annotations

import hmac
import os
import stat
from typing import NamedTuple

from streamer.core.errors import OptionError
from streamer.core.secrets.environment import variable

TOKEN, TOKEN_FILE, TLS_DIR = "STREAMER_PEERS_TOKEN", "STREAMER_PEERS_TOKEN_FILE", "STREAMER_PEERS_TLS_DIR"
ZONE = "STREAMER_PEERS_ZONE"
LEAST_TOKEN_CHARACTERS = 16  # shorter ones can be guessed
MOST_TOKEN_BYTES = 4096


def token_of(path: str | None = None) -> str:
    """Return the token that all peers have: from a file, or from ``STREAMER_PEERS_TOKEN``.

    It is read each time, so a token that was replaced is used at once. Without one there are no peers.
    """
    path = path or variable(TOKEN_FILE)
    token = (_read(path) if path else variable(TOKEN) or "").strip()
    if len(token) < LEAST_TOKEN_CHARACTERS or not (token.isascii() and token.isprintable()) or " " in token:
        what = f"the file {path}" if path else TOKEN
        raise OptionError(
            f"peers need a token, and {what} holds none of {LEAST_TOKEN_CHARACTERS} or more plain characters",
            hint=f"Give each peer the same, from a secret: {TOKEN}, or {TOKEN_FILE} with the path of a file",
        )
    return token


class TlsFiles(NamedTuple):
    """The PEM files of a peer, named as those of a Kubernetes secret."""

    certificate: str  # of this peer
    key: str
    ca: str  # of the authority that has signed the certificates of all peers


def tls_files() -> TlsFiles | None:
    """Return the files in ``STREAMER_PEERS_TLS_DIR``; None if peers speak plain HTTP."""
    folder = variable(TLS_DIR)
    return TlsFiles(*(os.path.join(folder, name) for name in ("tls.crt", "tls.key", "ca.crt"))) if folder else None


def zone() -> str:
    """Return the zone of this node, within which bytes cost less; "" if the environment names none."""
    return variable(ZONE) or ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(MOST_TOKEN_BYTES)
    except OSError as error:
        raise OptionError(f"the token of the peers cannot be read: {error.strerror or error}: {path}") from error
    return ""


def wire_name(digest: str, token: str) -> str:
    """Return the name of an object between peers; `digest` is that of `streamer.core.cache.folder.digest_of`.

    Example:
        >>> len(wire_name("5f", "0123456789abcdef"))
        64
    """
    return hmac.new(token.encode(), digest.encode(), "sha256").hexdigest()


def is_token(given: str, token: str) -> bool:
    """Whether an ``Authorization`` header has the token; the time it takes does not say how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {token}".encode())
