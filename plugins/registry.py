"""From a URL to its store, through entry points of the group ``streamer.backends``, one per scheme.

Guarantees: only the backend of the scheme asked for is imported; one that cannot be imported, misspells its hook or
returns something else breaks only its own scheme, and the error names its distribution and entry point. Another
distribution's backend is preferred to ours of the same scheme, with a warning; two of others are refused rather than
guessed. `STREAMER_DISABLED_PLUGINS` (distributions, separated by commas) leaves some out. Importing this module imports
neither fsspec nor torch.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

from streamer.core.errors import PluginError, StreamerError, UnknownSchemeError
from streamer.core.redact import redact
from streamer.core.sources import PROJECT_NAME, Store, StoreHooks

if TYPE_CHECKING:  # takes 15 ms to import, a quarter of what `import streamer` may take
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "Backend", "installed", "open_store", "scheme_of"]

GROUP = "streamer.backends"
DISABLED = "STREAMER_DISABLED_PLUGINS"
FALLBACK = "streamer.backends.fsspec_any"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(?:://|::)")
_SEPARATOR = re.compile(r"[-_.]+")
_logger = logging.getLogger(PROJECT_NAME)


@dataclass(frozen=True)
class Backend:
    """An installed backend, not imported.

    Attributes:
        scheme: The URL scheme it serves.
        distribution: Name of the distribution that brings it.
        version: Version of that distribution.
        builtin: It is one of ours.
    """

    scheme: str
    distribution: str
    version: str
    builtin: bool


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    found: Iterable[EntryPoint] | None = None,
) -> Store:
    """Open the store that holds `uri`.

    Args:
        uri: A path, a URL, or a chained URL, which goes by its first scheme.
        storage_options: For the file system, unchanged.
        found: Entry points to choose from, instead of the installed ones.

    Raises:
        UnknownSchemeError: no backend and no fsspec file system serves this scheme.
        PluginError: the backend of this scheme is broken, or two distributions claim it.
        StreamerError: the backend refuses the URL or its options.
    """
    text = os.fspath(uri)
    scheme = scheme_of(text)
    candidates = _enabled(found)
    chosen = _choose(scheme, candidates)
    options = dict(storage_options or {})
    store = None if chosen is None else _open_with(chosen, scheme, text, options)
    if store is not None:
        return store
    try:
        store = _open_with(_fallback(), scheme, text, options)
    except UnknownSchemeError as error:
        names = ", ".join(sorted({point.name for point in candidates})) or "none"
        error.hint = ". ".join(part for part in (error.hint, f"Installed backends: {names}") if part)
        raise
    assert store is not None  # the fallback serves or raises
    return store


def installed(*, found: Iterable[EntryPoint] | None = None) -> list[Backend]:
    """List the backends that are installed and not disabled, by scheme, without importing them."""
    backends = [
        Backend(point.name.lower(), _distribution(point), _version(point), builtin=_is_builtin(point))
        for point in _enabled(found)
    ]
    return sorted(backends, key=lambda backend: (backend.scheme, backend.builtin, backend.distribution))


def scheme_of(uri: str) -> str:
    """Return the lower-case scheme of a URL; ``"file"`` for a path, the first protocol of a chained URL.

    Example:
        >>> [scheme_of(uri) for uri in ("S3://b/k", "simplecache::s3://b/k", "/models", "file:///models")]
        ['s3', 'simplecache', 'file', 'file']
    """
    match = _SCHEME.match(uri)
    scheme = match[1].lower() if match else "file"
    return "file" if scheme == "local" else scheme


def _fallback() -> EntryPoint:
    from importlib.metadata import EntryPoint  # noqa: PLC0415 (see above)

    return EntryPoint(name="*", value=FALLBACK, group=GROUP)


def _enabled(found: Iterable[EntryPoint] | None) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 (see above)

    disabled = {_normalized(name) for name in os.environ.get(DISABLED, "").split(",")} - {""}
    points = entry_points(group=GROUP) if found is None else found
    return [point for point in points if _normalized(_distribution(point)) not in disabled]


def _choose(scheme: str, candidates: Iterable[EntryPoint]) -> EntryPoint | None:
    claims = [point for point in candidates if point.name.lower() == scheme]
    foreign = [point for point in claims if not _is_builtin(point)]
    if len(foreign) > 1:
        names = " and ".join(sorted(_distribution(point) for point in foreign))
        raise PluginError(f"{names} both claim {scheme}://", hint=f"Uninstall one, or name it in {DISABLED}")
    if foreign and len(claims) > 1:
        _logger.warning("%s:// is served by %s instead of %s", scheme, _distribution(foreign[0]), PROJECT_NAME)
    return next(iter(foreign or claims), None)


def _open_with(point: EntryPoint, scheme: str, uri: str, options: Mapping[str, Any]) -> Store | None:
    manager = _manager(point)
    try:
        store = manager.hook.streamer_open_store(scheme=scheme, uri=uri, storage_options=options)
    except StreamerError:
        raise
    except Exception as error:
        shown = redact(uri)
        cause = error if shown == uri else None  # it may repeat the secret of the URL
        raise _broken(point, f"raised {type(error).__name__} while opening {shown}") from cause
    if store is not None and not isinstance(store, Store):
        raise _broken(point, f"returned a {type(store).__name__}, which lacks part of streamer.core.sources.Store")
    return store


def _manager(point: EntryPoint) -> pluggy.PluginManager:
    """Load one backend into a manager of its own, so that no other one is called, or can fail."""
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(StoreHooks)
    try:
        plugin = point.load()
    except Exception as error:
        raise _broken(point, f"cannot be imported ({type(error).__name__}: {error})") from error
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _broken(point, str(error)) from error
    if not manager.hook.streamer_open_store.get_hookimpls():
        raise _broken(point, "has no function streamer_open_store marked with streamer.hookimpl")
    return manager


def _broken(point: EntryPoint, what: str) -> PluginError:
    return PluginError(
        f"The backend {point.name!r} = {point.value!r} of {_distribution(point)} {_version(point)} {what}",
        hint=f"Update or uninstall it, or name it in {DISABLED}",
    )


def _distribution(point: EntryPoint) -> str:
    if point.dist is not None:
        return str(point.dist.name)
    return PROJECT_NAME if point.value == FALLBACK else "an unknown distribution"


def _version(point: EntryPoint) -> str:
    return str(point.dist.version) if point.dist is not None else ""


def _is_builtin(point: EntryPoint) -> bool:
    return _normalized(_distribution(point)) == PROJECT_NAME


def _normalized(name: str) -> str:
    """Spell a distribution as PEP 503 does, so that ``My_Plugin`` and ``my-plugin`` are the same."""
    return _SEPARATOR.sub("-", name.strip()).lower()
