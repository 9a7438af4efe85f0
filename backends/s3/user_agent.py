"""The ``User-Agent`` of the engine's requests to S3, if botocore's configuration names one.

Guarantees: a whole name of the user replaces the engine's name, as it replaces botocore's; additions are appended.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from streamer.backends.client.header_faults import fault_of
from streamer.core.errors import OptionError

__all__ = ["NAMING_OPTIONS", "check_user_agent", "user_agent_of"]

NAMING_OPTIONS = ("user_agent", "user_agent_appid", "user_agent_extra")


def check_user_agent(config: Mapping[str, Any]) -> None:
    """Refuse a name that cannot be sent.

    Args:
        config: The option ``config_kwargs``.

    Raises:
        OptionError: the name holds a character that cannot be sent, such as a line end.
    """
    for name in NAMING_OPTIONS:
        if (fault := fault_of("User-Agent", config.get(name) or "")) is not None:
            raise OptionError(fault, hint=f"It is config_kwargs[{name!r}]: strip what a file has put around it")


def user_agent_of(name: str | None, app: str | None, extra: str | None) -> str | None:
    """Return the ``User-Agent`` that the engine sends, or None for the engine's own name.

    Args:
        name: ``user_agent`` of the user's configuration.
        app: ``user_agent_appid``; ignored beside a whole name, as in botocore.
        extra: ``user_agent_extra``.

    Example:
        >>> user_agent_of("mine/1", "shop", "team/a")
        'mine/1 team/a'
    """
    if name:
        return " ".join(filter(None, (name, extra)))
    added = [f"app/{app}" if app else None, extra]
    return " ".join(filter(None, (f"streamer/{version('streamer')}", *added))) if any(added) else None
