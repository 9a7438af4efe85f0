"""The content of ``--model-loader-extra-config``: fields of `streamer.Options`, and a few other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamer.core.checkpoint.strategies import VerifyOption
from streamer.core.errors import OptionError
from streamer.core.options.machine import memory_bytes
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.secrets.environment import variable

__all__ = ["ExtraConfig", "for_place", "parsed"]

AHEAD_BYTES = 256 << 20
URL_AHEAD_BYTES = 512 << 20
URL_AHEAD_OF_MEMORY = 64


@dataclass(frozen=True)
class ExtraConfig:
    """How to read the weights.

    Attributes:
        options: As for `streamer.load`; None for the defaults and the environment.
        storage_options: As for `streamer.load`.
        verify: As for `streamer.load`.
        of_engine: The keys of the engine's own loader.
    """

    options: Options | None
    storage_options: Mapping[str, Any] | None
    verify: VerifyOption
    of_engine: dict[str, Any]


def parsed(given: Any, of_engine: tuple[str, ...]) -> ExtraConfig:
    """Check and divide the dictionary of the user.

    Args:
        given: The dictionary.
        of_engine: The keys of the engine's own loader.

    Raises:
        OptionError: `given` is no dictionary, has an unknown key, or a value that `streamer.Options` does not accept.
    """
    if not isinstance(given or {}, dict):
        raise OptionError(f"model_loader_extra_config is a dict, and not {type(given).__name__}")
    left = dict(given or {})
    storage_options, verify = left.pop("storage_options", None), left.pop("verify", None)
    theirs = {key: left.pop(key) for key in of_engine if key in left}
    return ExtraConfig(Options(**left) if left else None, storage_options, verify, theirs)


def for_place(options: Options | None, place: str) -> Options | None:
    """Return options with a smaller memory limit than other loads have, unless the user has set one.

    An engine takes each tensor immediately, so a larger limit only costs memory: a Llama of 1 GiB in the page cache
    took as long with 128 MiB as with the default, which held all of it. For a URL, the limit is what the network of a
    large machine needs.
    """
    if variable("STREAMER_MEMORY_LIMIT_BYTES") is not None or (options and options.memory_limit_bytes is not None):
        return options
    of_url = min(resolve(None).memory_limit_bytes, max(URL_AHEAD_BYTES, memory_bytes() // URL_AHEAD_OF_MEMORY))
    return replace(options or Options(), memory_limit_bytes=of_url if "://" in place else AHEAD_BYTES)
