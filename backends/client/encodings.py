"""The values of ``Content-Encoding`` that leave the bytes unchanged, as in native/http/range_response.cc. Pure.

If a body is framed or compressed despite such a value, it is refused for its size, its header or its checksum.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["is_plain"]

# ``aws-chunked`` is the framing of an upload. Some S3 servers remove the framing, but store the name with the object.
_PLAIN = frozenset({"", "aws-chunked", "identity"})


def is_plain(headers: Mapping[str, str]) -> bool:
    """Say whether the body of an answer is sent without compression.

    Args:
        headers: Headers of the answer; names in any case, and a name may occur repeatedly.

    Example:
        >>> [is_plain({"Content-Encoding": value}) for value in ("AWS-Chunked", "identity, aws-chunked", "gzip")]
        [True, True, False]
    """
    values = ",".join(value for name, value in headers.items() if name.lower() == "content-encoding")
    return all(token.strip().lower() in _PLAIN for token in values.split(","))
