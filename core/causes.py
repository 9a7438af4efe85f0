"""An error and those that it shows: raises one with or without a cause, and walks from it to all of them, each once."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import NoReturn


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, then every error that its traceback would show; they may refer to each other in a circle.

    Example:
        >>> error = ValueError("later")
        >>> error.__cause__ = KeyError("first")
        >>> list(with_causes(error))
        [ValueError('later'), KeyError('first')]
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [each.__cause__, each.__context__, *_members(each)]


def raise_from(error: BaseException, cause: BaseException | None) -> NoReturn:
    """Raise an error; without a cause also without a context, whose frames and attributes may hold a secret."""
    try:
        raise error from cause
    finally:
        if cause is None:
            error.__context__ = None


def forget_locals(error: BaseException) -> None:
    """Drop the local variables of the frames in an error's traceback, which keep objects and a load's memory alive."""
    for each in with_causes(error):
        traceback.clear_frames(each.__traceback__)


def _members(error: BaseException) -> list[BaseException]:
    """Return the errors of a group; in a foreign class, ``exceptions`` may hold something else, or raise."""
    try:
        members = list(getattr(error, "exceptions", ()))
    except Exception:
        return []
    return [each for each in members if isinstance(each, BaseException)]
