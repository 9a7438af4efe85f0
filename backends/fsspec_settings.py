"""Merges fsspec's own configuration of a scheme with the user's options, which win.

Guarantees: fsspec is imported only if it has a configuration, or is used anyway. The user's options are copied, never
changed, and no `repr` shows their secrets.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from streamer.core.errors import OptionError
from streamer.core.secrets.environment import is_blank, set_variables

_FOLDER = "~/.config/fsspec"  # unless FSSPEC_CONFIG_DIR names another folder


def are_configured(*schemes: str, variables: Iterable[str] | None = None) -> bool:
    """Say whether a variable or a file sets options for one of the schemes."""
    names = set_variables() if variables is None else variables
    has_variables = any(name.startswith("FSSPEC_") for name in names)
    if not has_variables and "fsspec" not in sys.modules and not os.path.isdir(os.path.expanduser(_FOLDER)):
        return False
    from fsspec.config import conf  # noqa: PLC0415  the import takes 6 ms

    return any(conf.get(scheme) for scheme in schemes)


def configured_options(cls: type[Any], storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge fsspec's configuration of a file system class into the user's arguments."""
    from fsspec.config import apply_config  # noqa: PLC0415  the import takes 6 ms

    options: dict[str, Any] = apply_config(cls, storage_options)
    for name in [name for name in options if name not in storage_options and is_blank(options[name])]:
        del options[name]  # for example, FSSPEC_S3_KEY= sets a blank key
    if options.get("asynchronous"):
        raise OptionError("asynchronous=True is for file systems used inside coroutines, which this one is not")
    return options


def names_of_arguments(*functions: Callable[..., Any]) -> set[str]:
    """Return the names of arguments of functions; for a class, those of its constructor and its bases' constructors.

    Arguments in ``**kwargs`` have no names here and are left out. fsspec's classes hide their signature from `inspect`.
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    signatures = [inspect.signature(each) for function in functions for each in _constructors(function)]
    return {each.name for signature in signatures for each in signature.parameters.values() if each.kind in named}


def _constructors(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    if not isinstance(function, type):
        return [function]
    own = (vars(base).get("__init__") for base in function.__mro__)
    return [partial(each, None) for each in own if inspect.isfunction(each)]  # without `self`
