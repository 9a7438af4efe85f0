"""Which of the user's storage options concern one URL. Pure, but for asking fsspec which schemes it knows.

One mapping may serve URLs of several storages: ``{"s3": {"key": …}, "gs": {"token": …}}``, as in fsspec's chained URLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["options_of"]


def options_of(uri: str, scheme: str, given: Mapping[str, Any], backends: Mapping[str, str]) -> dict[str, Any]:
    """Choose the options of one URL.

    Args:
        uri: The URL, chained or not.
        scheme: Its first scheme.
        given: The user's options. A mapping under the name of a scheme is for that scheme; all else is for every
            URL, and wins over it, as in fsspec.
        backends: Scheme to module of every installed backend; schemes of one module are aliases of each other.

    Returns:
        A new mapping: flat for a plain URL, still by scheme for a chained one, which fsspec takes apart itself.
    """
    if not any(isinstance(value, Mapping) for value in given.values()):
        return dict(given)
    known = _known_schemes(backends)
    by_scheme = {key: value for key, value in given.items() if isinstance(value, Mapping) and key in known}
    for_all = {key: value for key, value in given.items() if key not in by_scheme}
    if "::" in uri:
        chain = {part.partition("://")[0] for part in uri.split("::")}
        return {**{key: dict(value) for key, value in by_scheme.items() if key in chain}, **for_all}
    module = backends.get(scheme)
    aliases = {scheme} | {name for name, value in backends.items() if module is not None and value == module}
    own: dict[str, Any] = {}
    for key, value in by_scheme.items():
        if key in aliases:
            own.update(value)
    return {**own, **for_all}


def _known_schemes(backends: Mapping[str, str]) -> set[str]:
    from fsspec import available_protocols  # noqa: PLC0415 (takes 0.1 s; most users give flat options)

    return {*available_protocols(), *backends}
