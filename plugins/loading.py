"""Loads the hooks of an entry point, so that its faults do not reach another backend.

Guarantees: each backend is loaded into a plug-in manager of its own, so no other is called, imported or able to fail;
every error names the distribution and the entry point. Where a built-in one lacks its library, the error names the
extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from streamer.backends.extras import install_hint
from streamer.core.discovery.entry_points import name_of, normalized
from streamer.core.errors import PluginError, StreamerError, UnknownSchemeError
from streamer.core.options.limits import Limits
from streamer.core.secrets.options import plain
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import PROJECT_NAME, Source, Store, StoreHooks

if TYPE_CHECKING:  # takes 15 ms to import, a quarter of what `import streamer` may take
    from importlib.metadata import EntryPoint

__all__ = [
    "DISABLED",
    "FALLBACK",
    "distribution_of",
    "is_builtin",
    "open_with",
    "source_kind",
    "version_of",
]

DISABLED = "STREAMER_DISABLED_PLUGINS"
FALLBACK = "streamer.backends.fsspec.store"


def open_with(point: EntryPoint, scheme: str, uri: str, options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Let one backend open `uri`.

    Returns:
        Its store, or None when it does not serve the URL.

    Raises:
        PluginError: it cannot be imported, has no hook, or does not return a `Store`.
        UnknownSchemeError: it is built in, and its library is not installed.
        StreamerError: any that it raises itself.
    """
    hook = _hooks(point, scheme).streamer_open_store
    try:
        store = hook(
            scheme=scheme,
            uri=uri if _is_ours(point) else str(uri),
            storage_options=options if _is_ours(point) else plain(options),  # others hand them to fsspec as they are
            limits=limits,
        )
    except StreamerError:
        raise
    except Exception as error:
        shown = redact(uri)
        cause = error if shown == uri else None  # its text may hold the secret of the URL
        raise _broken(point, f"raised {type(error).__name__} while opening {shown}") from cause
    if store is not None and not isinstance(store, Store):
        raise _broken(point, f"returned a {type(store).__name__}, which lacks part of streamer.plugins.Store")
    return store


def source_kind(point: EntryPoint, scheme: str) -> type[Source] | None:
    """Ask a backend which kind of source its stores return; None when it does not say.

    Raises:
        PluginError: as `open_with`.
        UnknownSchemeError: as `open_with`.
    """
    try:
        kind: type[Source] | None = _hooks(point, scheme).streamer_source_kind(scheme=scheme)
    except StreamerError:
        raise
    except Exception as error:
        raise _broken(point, f"raised {type(error).__name__} in streamer_source_kind") from error
    return kind


def distribution_of(point: EntryPoint) -> str:
    """Name the distribution that brings an entry point."""
    if point.dist is not None:
        return name_of(point.dist)
    return PROJECT_NAME if point.value == FALLBACK else "an unknown distribution"


def version_of(point: EntryPoint) -> str:
    """Return the version of that distribution."""
    return str(point.dist.version) if point.dist is not None else ""


def is_builtin(point: EntryPoint) -> bool:
    """Whether an entry point belongs to this distribution."""
    return normalized(distribution_of(point)) == PROJECT_NAME


def _is_ours(point: EntryPoint) -> bool:
    return point.value.startswith("streamer.backends.")  # to read the name of its distribution takes half a millisecond


def _hooks(point: EntryPoint, scheme: str) -> Any:
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(StoreHooks)
    try:
        plugin = point.load()
    except ImportError as error:
        if is_builtin(point):
            raise _lacking(point, scheme, error) from error
        raise _broken(point, f"cannot be imported ({type(error).__name__}: {error})") from error
    except Exception as error:
        raise _broken(point, f"cannot be imported ({type(error).__name__}: {error})") from error
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _broken(point, str(error)) from error
    if not manager.hook.streamer_open_store.get_hookimpls():
        raise _broken(point, "has no function streamer_open_store marked with streamer.hookimpl")
    return manager.hook


def _lacking(point: EntryPoint, scheme: str, error: ImportError) -> UnknownSchemeError:
    needed = (error.name or "its library").partition(".")[0]
    return UnknownSchemeError(
        f"{scheme}:// needs {needed}, which cannot be imported ({error})", hint=install_hint(point.name.lower())
    )


def _broken(point: EntryPoint, what: str) -> PluginError:
    return PluginError(
        f"The backend {point.name!r} = {point.value!r} of {distribution_of(point)} {version_of(point)} {what}",
        hint=f"Update or uninstall it, or name it in {DISABLED}",
    )
