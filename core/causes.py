"""An error and every error behind it: causes, contexts, members of a group; each once. Pure."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["with_causes"]


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Give `error`, then every error that its traceback would show; they may refer to each other in a circle.

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
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
