"""aiohttp: connectors of the user.

Tried with aiohttp 3.9.5 to 3.14.5.
"""

from __future__ import annotations

from typing import Any


def verifies_tls(connector: Any) -> bool:
    """Say whether a connector was made without ``ssl=False``."""
    return getattr(connector, "_ssl", True) is not False
