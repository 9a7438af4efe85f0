"""The arguments of an fsspec file system that a backend makes: the user's options, over fsspec's own configuration.

Guarantees: the user's options are copied, never changed, and no `repr` shows their secrets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fsspec.config import apply_config

from streamer.core.errors import OptionError
from streamer.core.secrets.environment import is_blank
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["configured_options", "names_of_arguments"]


def configured_options(cls: type[Any], storage_options: Mapping[str, Any]) -> SecretOptions:
    """Merge fsspec's configuration of a file system class into the user's arguments.

    Raises:
        OptionError: ``asynchronous=True``; such an instance belongs to an event loop of the caller.
    """
    options = SecretOptions(apply_config(cls, plain(storage_options)))
    for name in [name for name in options if name not in storage_options and is_blank(options[name])]:
        del options[name]  # as set by FSSPEC_S3_KEY=
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
