"""Joins the group of a load, if it has one.

A load without a group imports nothing else of this folder: that takes 15 ms.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamer.core.group.member import Member
    from streamer.core.request.request import Request


def joined_group(request: Request, call: str = "a load") -> AbstractContextManager[Member | None]:
    """Join the load of the request's group, if it has one; an error in the block is reported to the other ranks."""
    if request.group is None:
        return nullcontext()
    from streamer.core.group.agreement import joined  # noqa: PLC0415 (see the module's docstring)

    return joined(request, call)


def reporting_to_group(group: Any) -> AbstractContextManager[None]:
    """Report an error in the block to the other ranks of a group, which have joined the load by then."""
    if group is None:
        return nullcontext()
    from streamer.core.group.agreement import reporting  # noqa: PLC0415 (see the module's docstring)

    return reporting(group)
