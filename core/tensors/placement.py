"""Chooses the device of each tensor: one device for all, or a mapping of names and prefixes, as in accelerate. Pure.

Refuses: a mapping that leaves a wanted tensor without a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from streamer.core.errors import OptionError

__all__ = ["Placement"]

LONGEST_COMPARED = 300  # characters: difflib is quadratic in the length


class Placement:
    """The ``device`` argument of a load.

    Args:
        device: Any device of the framework, or a mapping. A key is the whole name of a tensor, the name of a module
            (``model.layers.0``: all names below it), or ``""`` for all names that no other key matches. The longest
            matching key counts.

    Example:
        >>> Placement({"": "cpu", "model.layers.0": "cuda:1"}).of("model.layers.0.mlp.weight")
        'cuda:1'
    """

    def __init__(self, device: Any) -> None:
        self._by_key: Mapping[str, Any] = device if isinstance(device, Mapping) else {"": device}
        if not self._by_key:
            raise OptionError("the mapping of names to devices is empty", hint='Give a device for "", all others')
        if wrong := [key for key in self._by_key if not isinstance(key, str)]:
            raise OptionError(f"a mapping of names to devices has the key {wrong[0]!r}, which is no name")

    @property
    def devices(self) -> list[Any]:
        """The devices of all keys, in order."""
        return list(self._by_key.values())

    @property
    def leaves_none_out(self) -> bool:
        """Whether every possible name has a device."""
        return "" in self._by_key

    def of(self, name: str) -> Any:
        """Return the device of a tensor.

        Raises:
            OptionError: no key matches its name.
        """
        key = name
        while key and key not in self._by_key:
            key = key.rpartition(".")[0]
        if key not in self._by_key:
            near = get_close_matches(name[:LONGEST_COMPARED], self._by_key, n=1, cutoff=0.5)
            meant = f". Near: {near[0][:80]!r}" if near else ""
            raise OptionError(
                f"the mapping of names to devices has none for tensor {name[:80]!r}",
                hint=f'Add a key for its module, or "" for all others{meant}',
            )
        return self._by_key[key]
