"""Whether the bytes of a load are those that somebody once took a digest of, and what may be said about it.

Guarantees: an object counts as verified only when a digest of all its bytes, or of all its tensors that were read, was
compared and equal; whatever was not compared is told with its reason. Without ``verify`` nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.errors import OptionError
from streamer.core.secrets.environment import variable

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["Pieces", "Verification", "VerifyOption", "resolve_verify"]

VerifyOption: TypeAlias = Literal["auto", "manifest", "off"] | None

ENVIRONMENT = "STREAMER_VERIFY"
_MODES = ("auto", "manifest", "off")

# (first byte in the object, bytes, checksum) of the consecutive pieces of an item.
Pieces: TypeAlias = list[tuple[int, int, int]]


def resolve_verify(given: VerifyOption, environment: Mapping[str, str] | None = None) -> str:
    """Choose between the argument, ``STREAMER_VERIFY`` and ``"off"``, in this order.

    Raises:
        OptionError: a word that is none of the modes.

    Example:
        >>> resolve_verify(None, {"STREAMER_VERIFY": "manifest"})
        'manifest'
    """
    chosen = given if given is not None else variable(ENVIRONMENT, environment) or "off"
    if chosen not in _MODES:
        name = "verify" if given is not None else ENVIRONMENT
        raise OptionError(f'{name} is "auto", "manifest" or "off", not {chosen!r}')
    return chosen


class Verification(Protocol):
    """What one read of a checkpoint compares."""

    @property
    def digests(self) -> _native.DigestPlan | None:
        """What the engine shall compute; None: nothing."""

    @property
    def needs_order(self) -> bool:
        """Whether items must be taken in the order of the plan."""

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Look at an item before it is handed out: its bytes (None: not in host memory), and its pieces' checksums.

        Raises:
            ChecksumError: with it an object is complete, and its digest another than the expected one.
        """

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Tell what was verified so far, object by object.

        Args:
            compares_answers: Whether every answer about a shard so far was compared with a checksum of it.
        """
