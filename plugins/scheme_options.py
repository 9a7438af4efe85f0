"""Chooses the user's storage options for one URL. Pure, except that it reads fsspec's list of schemes.

One mapping may serve URLs of several storages: ``{"s3": {"key": …}, "gs": {"token": …}}``, as in fsspec's chained URLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer.backends.option_names import near_name
from streamer.core.errors import OptionError
from streamer.core.quoting import quoted

__all__ = ["options_of"]


def options_of(
    uri: str, scheme: str, storage_options: Mapping[str, Any], backends: Mapping[str, str]
) -> dict[str, Any]:
    """Choose the options of one URL.

    Args:
        uri: The URL, chained or not.
        scheme: Its first scheme.
        storage_options: The user's options. A mapping under the name of a scheme is for that scheme; all other options
            are for every URL, and take precedence, as in fsspec.
        backends: Maps the scheme of every installed backend to its module; schemes of one module are aliases.

    Returns:
        A new mapping: flat for a plain URL, still by scheme for a chained URL, because fsspec splits it itself.

    Raises:
        OptionError: options stand under a name that is similar to a scheme of the URL.
    """
    if not any(isinstance(value, Mapping) for value in storage_options.values()):
        return dict(storage_options)
    schemes = _existing_schemes(backends)
    by_scheme = {key: value for key, value in storage_options.items() if isinstance(value, Mapping) and key in schemes}
    for_all = {key: value for key, value in storage_options.items() if key not in by_scheme}
    _check_schemes(for_all, {scheme} | {part.partition("://")[0] for part in uri.split("::")})
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


def _check_schemes(options: Mapping[str, Any], schemes: set[str]) -> None:
    for key in options:
        near = near_name(key, schemes) if isinstance(options[key], Mapping) else None
        if near is not None:
            raise OptionError(
                f"storage_options holds options under {quoted(key)}, which is no scheme", hint=f"Did you mean {near!r}?"
            )


def _existing_schemes(backends: Mapping[str, str]) -> set[str]:
    from fsspec import available_protocols  # noqa: PLC0415 (takes 0.1 s; most users give flat options)

    return {*available_protocols(), *backends}
