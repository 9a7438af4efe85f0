"""What two loads must have in common to share: the same objects in the same versions, with equal identities."""

from __future__ import annotations

import os
from collections.abc import Sequence

from streamer.core.engine.session import SourceObject
from streamer.core.store.identities import digest_of, seal_of
from streamer.core.store.sources import HttpSource, NfsSource

__all__ = ["is_shareable", "key_of"]

PROTOCOL = 2  # version of the messages, the book and the shared memory
_KEY_DIGITS = 40  # the name of a socket has at most 107 bytes


def is_shareable(each: SourceObject) -> bool:
    """Whether an object is on a network and its version names its bytes; the page cache shares mounted files."""
    return each.is_settled and _version_of(each) != "" and each.identity != ""


def key_of(objects: Sequence[SourceObject]) -> str:
    """Return a digest of a checkpoint's objects, in their order; it reveals no URL and no secret."""
    described = [[each.identity, each.size_bytes, _version_of(each)] for each in objects]
    # All users see the names of sockets. Processes that meet need one salt, so that of their user is the best there is.
    seal = seal_of(digest_of(PROTOCOL, described), f"user {os.geteuid()}")
    return seal.rpartition("-")[2][:_KEY_DIGITS]


def _version_of(each: SourceObject) -> str:
    if isinstance(each.source, HttpSource):
        if each.source.version_header is None:  # the URL names one version
            return each.stored_version or "named"
        return each.version or each.source.version or ""
    return each.version if isinstance(each.source, NfsSource) else ""
