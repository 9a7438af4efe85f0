"""Refuses storage options that a storage does not have: a mistyped option would silently do nothing. Pure.

Guarantees: an error names the refused option, and either the most similar option or all options. The arguments that
fsspec accepts for every file system are never refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from streamer.backends.builtin_storages import BUILTIN_SCHEMES
from streamer.core.errors import OptionError
from streamer.core.quoting import quoted

# Arguments of `fsspec.AbstractFileSystem`, of its asynchronous kind, and of its cache of instances.
OF_FSSPEC = frozenset(
    {
        "asynchronous",
        "batch_size",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)
NEAR = 0.65  # least ratio of `difflib`: finds a name of three or four letters with two letters swapped


def check_option_names(
    owner: str, options: Mapping[str, Any], names: Iterable[str], *, ignored: Iterable[str] = ()
) -> None:
    """Check the names of storage options.

    Args:
        owner: The owner of the options, for messages: ``"s3://"``, or the name of an option that is a mapping.
        options: The options; of their values, only whether they are mappings is checked.
        names: Names of the options that exist.
        ignored: Names of the options that exist and do nothing here.

    Raises:
        OptionError: there is no option of that name.

    Example:
        >>> check_option_names("acme://", {"tokn": "…"}, ["token", "region"])
        Traceback (most recent call last):
        streamer.core.errors.OptionError: acme:// has no storage option 'tokn'. Did you mean 'token'?
    """
    supported = {*names}
    for name in options:
        if name not in supported and name not in OF_FSSPEC and name not in ignored:
            raise OptionError(
                f"{owner} has no storage option {quoted(name)}",
                hint=_hint(name, sorted(supported - OF_FSSPEC), owner, is_mapping=isinstance(options[name], Mapping)),
            )


def near_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, which the user may have meant; None if no name is similar enough.

    Example:
        >>> near_name("flie", ["file", "s3"])
        'file'
    """
    spelled = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), spelled, 1, NEAR)
    return spelled[near[0]] if near else None


def _hint(name: str, names: list[str], owner: str, *, is_mapping: bool) -> str:
    near = near_name(name, names)
    if near is None and is_mapping and (scheme := near_name(name, sorted(BUILTIN_SCHEMES))):
        return f"Did you mean {scheme!r}? Options under the name of a scheme are for its URLs alone"
    if near is not None:
        return f"Did you mean {near!r}?"
    has = f"It has {', '.join(names)}" if names else "It has none at all"
    is_of_url = owner.endswith("://")
    return f"{has}; those of another storage go under the name of its scheme: {{'s3': {{…}}}}" if is_of_url else has
