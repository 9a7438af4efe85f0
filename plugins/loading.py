"""Loads the hooks of an entry point, so that its faults do not affect other backends.

Guarantees: each backend is loaded into a separate plug-in manager, so no other backend is called or imported, or can
fail. Every error names the distribution and the entry point. If the library of a built-in backend is missing, the error
names the extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from streamer.backends.builtin_storages import install_hint
from streamer.core import VERSION
from streamer.core.collector import collector_paused
from streamer.core.discovery.entry_points import entry_points_of, name_of, normalized
from streamer.core.errors import OptionError, StreamerError, UnknownSchemeError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import blank_variables
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import (
    PROJECT_NAME,
    FileSource,
    HttpSource,
    NfsSource,
    PythonSource,
    Source,
    Store,
    StoreHooks,
)

if TYPE_CHECKING:  # the import takes 15 ms, a quarter of the time that `import streamer` may take
    from importlib.metadata import EntryPoint

    from streamer.plugins.guard import Plugin

# Libraries of storages read these variables at their import, and some fail if a variable is blank.
OF_LIBRARIES = (
    *("DEFAULT_GCSFS_CONCURRENCY", "GCSFS_DEBUG", "S3FS_LOGGING_LEVEL"),
    *("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
)

OUR_MODULES = f"{PROJECT_NAME}."
FALLBACK = "streamer.backends.fsspec.store"

_KINDS = (FileSource, HttpSource, NfsSource, PythonSource)
_LIMITS = Limits()


def open_with(point: EntryPoint, scheme: str, uri: str, options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Let one backend open `uri`, unless it declines; the store of another distribution is guarded."""
    hook = _hooks(point, scheme).streamer_open_store
    if _is_ours(point):
        return _opened_by_us(point, hook, scheme=scheme, uri=uri, storage_options=options, limits=limits)
    _refuse_unasked_options(hook, scheme, options)
    from streamer.plugins.guard import HOOK, Calls, GuardedStore  # noqa: PLC0415 (as needed)

    calls = Calls(plugin_of(point, scheme), uri, options, limits)
    store = calls.call(HOOK, lambda: hook(scheme=scheme, uri=uri, storage_options=options, limits=limits))
    return None if store is None else GuardedStore(store, calls)


def source_kind(point: EntryPoint, scheme: str) -> type[Source] | None:
    """Return the kind of source that a backend's stores return; None if the backend does not say."""
    from streamer.plugins.answers import BrokenContractError, kind_of  # noqa: PLC0415 (as needed)
    from streamer.plugins.guard import Calls  # noqa: PLC0415 (as needed)

    hook = _hooks(point, scheme).streamer_source_kind

    def asked() -> type[Source] | None:
        kind: Any = hook(scheme=scheme)
        if kind is None or (isinstance(kind, type) and issubclass(kind, _KINDS)):
            return kind
        raise BrokenContractError(f"returned {kind_of(kind)}, not FileSource, HttpSource, NfsSource or PythonSource")

    return Calls(plugin_of(point, scheme), "", {}, _LIMITS).call("streamer_source_kind", asked)


def distribution_of(point: EntryPoint) -> str:
    """Return the name of the distribution that contains an entry point."""
    if point.dist is not None:
        return name_of(point.dist)
    return PROJECT_NAME if point.value.startswith(OUR_MODULES) else "an unknown distribution"


def version_of(point: EntryPoint) -> str:
    """Return the version of the distribution that contains an entry point."""
    if point.dist is not None:
        return str(point.dist.version)
    return VERSION if point.value.startswith(OUR_MODULES) else ""


def points_of(group: str, modules: Mapping[str, str], folders: Iterable[str] = ()) -> list[EntryPoint]:
    """Return the entry points of a group: of this package, which no metadata needs to announce, and of others."""
    own = our_points(group, modules)
    announced = entry_points_of(group, folders)
    return [*own, *(point for point in announced if modules.get(point.name) != point.value)]


def our_points(group: str, modules: Mapping[str, str]) -> list[EntryPoint]:
    """Return the entry points of this package for a group."""
    from importlib.metadata import EntryPoint  # noqa: PLC0415 (takes 15 ms)

    return [EntryPoint(name, module, group) for name, module in modules.items()]


def is_builtin(point: EntryPoint) -> bool:
    """Return whether an entry point belongs to this distribution."""
    return normalized(distribution_of(point)) == PROJECT_NAME


def _is_ours(point: EntryPoint) -> bool:
    return point.value.startswith("streamer.backends.")  # reading the name of its distribution takes 0.5 ms


def _wrong_hook(error: BaseException) -> str:
    """Return pluggy's message of several lines as one line."""
    problem = str(error).splitlines()[-1].strip()
    return f"has a hook that cannot be called: {problem}. Its arguments may be scheme, uri, storage_options and limits"


def _hooks(point: EntryPoint, scheme: str) -> Any:
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(StoreHooks)
    try:
        with collector_paused():
            module = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script ends with SystemExit when it is imported
        if is_builtin(point) and isinstance(error, ImportError):
            raise _lacking(point, scheme, error) from error
        blank = blank_variables(OF_LIBRARIES) if is_builtin(point) else []
        hint = f"; some libraries cannot be imported with a blank variable: unset {', '.join(blank)}" if blank else ""
        raise plugin_of(point, scheme).error(f"cannot be imported ({type(error).__name__}: {error}{hint})") from error
    try:
        manager.register(module)
        manager.check_pending()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        is_of_pluggy = isinstance(error, pluggy.PluginValidationError)
        raise plugin_of(point, scheme).error(
            _wrong_hook(error) if is_of_pluggy else f"cannot be used ({type(error).__name__}: {error})"
        ) from error
    if not manager.hook.streamer_open_store.get_hookimpls():
        raise plugin_of(point, scheme).error(
            "has no function streamer_open_store marked with streamer.plugins.hookimpl"
        )
    return manager.hook


def _opened_by_us(point: EntryPoint, hook: Any, *, scheme: str, uri: str, **arguments: Any) -> Store | None:
    """Open a URL with a backend of this package; an error names the backend, too."""
    try:
        store: Store | None = hook(scheme=scheme, uri=uri, **arguments)
    except StreamerError:
        raise
    except Exception as error:
        shown = redact(uri)
        cause = error if shown == uri else None  # the text of the exception may hold the secret of the URL
        raise plugin_of(point, scheme).error(f"raised {type(error).__name__} while opening {shown}") from cause
    return store


def _refuse_unasked_options(hook: Any, scheme: str, options: Mapping[str, Any]) -> None:
    """Refuse options for a plug-in whose hook takes none; other plug-ins check their options themselves."""
    if options and not any("storage_options" in each.argnames for each in hook.get_hookimpls()):
        name = next(iter(options))
        raise OptionError(f"{scheme}:// has no storage option {name!r}", hint="It has none at all")


def _lacking(point: EntryPoint, scheme: str, error: ImportError) -> UnknownSchemeError:
    needed = (error.name or "its library").partition(".")[0]
    return UnknownSchemeError(
        f"{scheme}:// needs {needed}, which cannot be imported ({error})", hint=install_hint(point.name.lower())
    )


def plugin_of(point: EntryPoint, scheme: str | None = None) -> Plugin:
    """Describe an entry point for errors; that of a format has no scheme."""
    from streamer.plugins.guard import Plugin  # noqa: PLC0415 (as needed)

    return Plugin(scheme, f"{point.name!r} = {point.value!r}", distribution_of(point), version_of(point))
