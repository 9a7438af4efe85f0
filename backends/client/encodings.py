"""Which values of ``Content-Encoding`` leave the bytes as they are, as native/http/range_response.cc has it. Pure.

A body that really is framed or compressed under such a name is refused for its size, its header or its checksum.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["is_plain"]

# The second is the framing of an upload, which some S3 servers undo, and keep its name as the object's encoding.
_PLAIN = frozenset({"", "aws-chunked", "identity"})


def is_plain(headers: Mapping[str, str]) -> bool:
    """Say whether the body of an answer is sent without compression.

    Args:
        headers: Those of the answer, in any case; a name may occur repeatedly.

    Example:
        >>> [is_plain({"Content-Encoding": value}) for value in ("AWS-Chunked", "identity, aws-chunked", "gzip")]
        [True, True, False]
    """
    values = ",".join(value for name, value in headers.items() if name.lower() == "content-encoding")
    return all(token.strip().lower() in _PLAIN for token in values.split(","))
