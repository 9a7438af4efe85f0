"""What a store answered, noted for other processes or recalled from one of them.

Refusals that a search for a checkpoint goes on from are answers, too: there is no such object, and listing is denied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from streamer.core.findings import Findings
from streamer.core.store.sources import ObjectInfo

__all__ = ["StoreFindings"]

_REFUSALS: dict[str, type[StorageError]] = {each.__name__: each for each in (ObjectNotFoundError, AccessDeniedError)}


class StoreFindings:
    """See the module's docstring."""

    def __init__(self, findings: Findings | None, server: str, origin: str) -> None:
        self._findings, self._server, self._origin = findings if origin else None, server, origin

    def info(self, path: str, ask: Callable[[], ObjectInfo]) -> ObjectInfo:
        """Return the description of an object; `ask` asks the store."""
        return self._answer("info", path, lambda: [ask()])[0]

    def find(self, prefix: str, ask: Callable[[], list[ObjectInfo]]) -> list[ObjectInfo]:
        """Return the objects in a folder; `ask` asks the store."""
        return self._answer("find", prefix, ask)

    def _answer(self, method: str, path: str, ask: Callable[[], list[ObjectInfo]]) -> list[ObjectInfo]:
        if self._findings is None:
            return ask()
        key = (method, self._server, self._origin, path)
        known = self._findings.recall(key)
        if known is not None:
            return _recalled(known)
        try:
            infos = ask()
        except StorageError as error:
            if type(error) in _REFUSALS.values():
                refusal = {"message": error.message, "uri": error.uri, "hint": error.hint, "status": error.status}
                self._findings.note(key, {"refusal": type(error).__name__, **refusal})
            raise
        self._findings.note(key, [[each.path, each.uri, each.size_bytes, each.version, each.is_weak] for each in infos])
        return infos


def _recalled(known: Any) -> list[ObjectInfo]:
    if isinstance(known, dict):
        refusal = dict(known)
        raise _REFUSALS[refusal.pop("refusal")](refusal.pop("message"), **refusal)
    # The process that noted them has waited until young versions were settled.
    return [
        ObjectInfo(path, uri, size_bytes, version, math.inf if is_weak else 0.0)
        for path, uri, size_bytes, version, is_weak in known
    ]
