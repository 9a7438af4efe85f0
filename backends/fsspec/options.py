"""The arguments of an fsspec file system that a backend makes: what the user gave, over fsspec's own configuration.

Guarantees: what the user gave is copied, never changed, and its secrets are shown by no `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.config import apply_config

from streamer.core.errors import OptionError
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["configured_options"]


def configured_options(cls: type[AbstractFileSystem], storage_options: Mapping[str, Any]) -> SecretOptions:
    """Merge fsspec's configuration of a file system class into the arguments that the user gave.

    Raises:
        OptionError: ``asynchronous=True``; such an instance belongs to an event loop of the caller's.
    """
    options = SecretOptions(apply_config(cls, plain(storage_options)))
    if options.get("asynchronous"):
        raise OptionError("asynchronous=True is for file systems used inside coroutines, which this one is not")
    return options
