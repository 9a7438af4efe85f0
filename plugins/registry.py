"""Opens the store of a URL, through entry points of the group ``streamer.backends``, one per scheme.

One mapping may serve URLs of several storages: ``{"s3": {"key": …}, "gs": {"token": …}}``, as in fsspec's chained URLs.

Guarantees: only the backend of the URL's scheme is imported, and it gets only the options of that scheme. A built-in
scheme gets the user's credentials, so another distribution's backend serves it only if `STREAMER_PLUGINS` names that
distribution, and with a warning. Two other distributions that claim one scheme are an error.
Distributions that `STREAMER_DISABLED_PLUGINS` names are not used. Both variables hold names, separated by commas. Files
in the working directory or in a checkpoint's folder are no plug-ins (`core/discovery/entry_points.py`). No state is
kept between two calls: any number of storages, endpoints and credentials may be open. Importing this module imports
neither fsspec nor torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamer.backends.builtin_storages import BUILTIN_MODULES, BUILTIN_SCHEMES
from streamer.backends.option_names import near_name
from streamer.core.discovery.entry_points import ALLOWED, DISABLED, is_allowed, normalized, refuse_accidental
from streamer.core.errors import OptionError, PluginError, UnknownSchemeError, UsageError
from streamer.core.folders.paths import absolute_path
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import check_file_system, check_letters, check_storage_options, check_uri
from streamer.core.options.limits import Limits
from streamer.core.path_objects import text_of, without_path_objects
from streamer.core.quoting import quoted
from streamer.core.secrets.environment import variable
from streamer.core.secrets.redact import redact
from streamer.core.store.names import scheme_of
from streamer.core.store.sources import PROJECT_NAME, Store
from streamer.plugins.loading import FALLBACK, distribution_of, is_builtin, open_with, our_points, plugin_of, points_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from fsspec import AbstractFileSystem

GROUP = "streamer.backends"
OUR_MODULES = "streamer.backends."
DEFAULT_LIMITS = Limits()

_warned: set[tuple[str, ...]] = set()
_logger = OwnLogger()


def options_of(
    uri: str, scheme: str, storage_options: Mapping[str, Any], backends: Mapping[str, str]
) -> dict[str, Any]:
    """Choose the options of one URL: flat, but by scheme for a chained URL, which fsspec splits itself."""
    if not any(isinstance(value, Mapping) for value in storage_options.values()):
        return dict(storage_options)
    schemes = _existing_schemes(backends)
    by_scheme = {key: value for key, value in storage_options.items() if isinstance(value, Mapping) and key in schemes}
    for_all = {key: value for key, value in storage_options.items() if key not in by_scheme}
    _check_schemes(for_all, {scheme} | {part.partition("://")[0] for part in uri.split("::")})
    if "::" in uri:
        chain = {part.partition("://")[0] for part in uri.split("::")}
        return {**{key: dict(value) for key, value in by_scheme.items() if key in chain}, **for_all}
    module = backends.get(scheme)
    aliases = {scheme} | {name for name, value in backends.items() if module is not None and value == module}
    own: dict[str, Any] = {}
    for key, value in by_scheme.items():
        if key in aliases:
            own.update(value)
    return {**own, **for_all}


def _check_schemes(options: Mapping[str, Any], schemes: set[str]) -> None:
    for key in options:
        near = near_name(key, schemes) if isinstance(options[key], Mapping) else None
        if near is not None:
            raise OptionError(
                f"storage_options holds options under {quoted(key)}, which is no scheme", hint=f"Did you mean {near!r}?"
            )


def _existing_schemes(backends: Mapping[str, str]) -> set[str]:
    from fsspec import available_protocols  # noqa: PLC0415 (takes 0.1 s; most users give flat options)

    return {*available_protocols(), *backends}


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    fs: AbstractFileSystem | None = None,
    entry_points: Iterable[EntryPoint] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Store:
    """Open the store that holds `uri`.

    Args:
        uri: A path, a URL, or a chained URL, whose first scheme counts. With `fs`, a path in that file system.
        storage_options: Options of the file system, passed on unchanged. Options under the name of a scheme
            (``{"s3": {…}, "gs": {…}}``) are only for URLs of that scheme.
        fs: An fsspec file system to read from, instead of a new one. If a native backend would create an equal file
            system, the engine reads natively, with the options of `fs`; otherwise the methods of `fs` read.
        entry_points: Entry points to choose from, instead of the installed ones.
        limits: Bounds of a server's answers.

    Raises:
        UnknownSchemeError: no backend and no fsspec file system serves this scheme.
        PluginError: the backend of this scheme is broken, or two distributions claim it.
        OptionError: both `fs` and `storage_options` are passed, or `uri` has another scheme than `fs`.
        StreamerError: the backend refuses the URL or its options.
    """
    check_uri(uri)
    check_storage_options(storage_options)
    check_file_system(fs)
    uri, storage_options, fs = without_path_objects(uri, storage_options, fs)
    text = text_of(uri)
    return open_checked_store(text, storage_options, fs, enabled(entry_points, [text]), limits)


def open_checked_store(
    text: str,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    candidates: list[EntryPoint],
    limits: Limits = DEFAULT_LIMITS,
) -> Store:
    """Open a store as `open_store` does, with arguments that are already checked, as in a `Request`."""
    _check_fragment(text)
    if fs is not None:
        if storage_options:
            raise OptionError("fs= has options of its own: leave storage_options out")
        return _open_instance(fs, text, candidates, limits)
    scheme = scheme_of(text)
    check_letters(_unicode_part(text, scheme), may_be_bytes=False)
    chosen = choose(scheme, candidates)
    modules = {point.name.lower(): point.value for point in candidates}
    options = dict(options_of(text, scheme, storage_options or {}, modules))
    store = None if chosen is None else open_with(chosen, scheme, text, options, limits)
    if store is not None:
        return store
    try:
        store = open_with(_fallback(), scheme, text, options, limits)
    except UnknownSchemeError as error:
        if chosen is not None and not chosen.value.startswith(OUR_MODULES):
            raise _declined(chosen, scheme, error) from error
        names = ", ".join(sorted({point.name for point in candidates})) or "none"
        error.hint = ". ".join(part for part in (error.hint, f"Installed backends: {names}") if part)
        raise
    assert store is not None  # the fallback serves or raises
    return store


def _check_fragment(uri: str) -> None:
    """Refuse a fragment in a URL: no request sends it, and without it the URL names another object."""
    url = uri.rpartition("::")[2]
    if url.lower().startswith(("http://", "https://")) and "#" in url:
        raise UsageError(
            "The URL has a fragment (#…), which is never sent to a server: the server would send another file",
            uri=redact(uri),
            hint="Write %23 for a # in a name, or leave the fragment out",
        )


def enabled(entry_points: Iterable[EntryPoint] | None = None, uris: Iterable[str] = ()) -> list[EntryPoint]:
    """Return the entry points of all backends that are installed and not disabled."""
    disabled = {normalized(name) for name in (variable(DISABLED) or "").split(",")} - {""}
    uris = list(uris)
    are_ours = bool(uris) and BUILTIN_SCHEMES.issuperset(map(scheme_of, uris))
    if entry_points is None and are_ours and not os.environ.get(ALLOWED):
        entry_points = our_points(GROUP, BUILTIN_MODULES)  # nobody else may serve them, and reading others takes 10 ms
    points = points_of(GROUP, BUILTIN_MODULES, map(folder_of, uris)) if entry_points is None else entry_points
    # Reading the name of a distribution from its metadata takes half a millisecond, so it is only read if needed.
    return [point for point in points if not disabled or normalized(distribution_of(point)) not in disabled]


def refuse_accidental_file_systems(uris: Sequence[str]) -> None:
    """Raise if fsspec would take code in the folder of one URI for the file system of another URI."""
    if any(scheme_of(each) not in BUILTIN_SCHEMES for each in uris):  # other schemes may be fsspec's
        refuse_accidental("fsspec.specs", "fsspec", map(folder_of, uris))


def choose(scheme: str, candidates: Iterable[EntryPoint]) -> EntryPoint | None:
    """Choose the backend of a scheme; None if no distribution claims it."""
    claims = [point for point in candidates if point.name.lower() == scheme]
    # A single claim needs no metadata of its distribution: for a built-in scheme, the module name suffices.
    if len(claims) == 1 and (scheme not in BUILTIN_SCHEMES or claims[0].value.startswith(OUR_MODULES)):
        return claims[0]
    foreign = [point for point in claims if not is_builtin(point) and may_serve(point)]
    ours = next((point for point in claims if is_builtin(point)), None)
    if len(foreign) > 1:
        names = " and ".join(sorted(distribution_of(point) for point in foreign))
        raise PluginError(f"{names} both claim {scheme}://", hint=f"Uninstall one, or name it in {DISABLED}")
    if foreign and scheme in BUILTIN_SCHEMES:
        _warn_once("%s:// is served by %s instead of %s", scheme, distribution_of(foreign[0]), PROJECT_NAME)
    for point in claims:
        if point is not ours and point not in foreign:
            name = distribution_of(point)
            _warn_once("%s:// is not served by %s: to allow it, name the distribution in %s", scheme, name, ALLOWED)
    return next(iter(foreign), ours)


def _warn_once(message: str, *values: str) -> None:
    """Log a line once per process, because a URL may be opened many times."""
    if (message, *values) not in _warned:
        _warned.add((message, *values))
        _logger.warning(message, *values)


def may_serve(point: EntryPoint) -> bool:
    """Return whether a backend may serve the scheme that it claims; a built-in scheme needs the user's permission."""
    is_free = point.name.lower() not in BUILTIN_SCHEMES
    return is_free or is_builtin(point) or is_allowed(distribution_of(point))


def folder_of(uri: str) -> str:
    """Return the folder of a checkpoint on a disk; for any other checkpoint, the working directory."""
    last = uri.rpartition("::")[2]
    if scheme_of(last) != "file":
        return ""
    try:
        path = absolute_path(last)
    except UsageError:  # raised again when the checkpoint is opened
        return ""
    return path if os.path.isdir(path) else os.path.dirname(path)


def _unicode_part(uri: str, scheme: str) -> str:
    """Return the part of a URL that must be Unicode; paths of files and of web servers may have any bytes."""
    if scheme not in BUILTIN_SCHEMES or scheme == "file":
        return ""
    return uri.partition("://")[2].partition("/")[0] if scheme in ("http", "https") else uri


def _declined(point: EntryPoint, scheme: str, error: UnknownSchemeError) -> UnknownSchemeError:
    """Make the error for a plug-in that declined the URL; fsspec's error would ask to install a package."""
    return UnknownSchemeError(
        f"{plugin_of(point).label}, which serves {scheme}://, declined this URL: its streamer_open_store returned None",
        uri=error.uri,
        hint="Check the URL and storage_options with its documentation; a hook without a return declines, too",
    )


def _fallback() -> EntryPoint:
    from importlib.metadata import EntryPoint  # noqa: PLC0415 (takes 15 ms)

    return EntryPoint(name="*", value=FALLBACK, group=GROUP)


def _open_instance(fs: AbstractFileSystem, path: str, candidates: Iterable[EntryPoint], limits: Limits) -> Store:
    """Open a store of an fsspec file system: natively if a built-in backend would make an equal file system."""
    from fsspec import AbstractFileSystem, get_filesystem_class  # noqa: PLC0415 (takes 0.1 s)

    from streamer.backends.fsspec.foreign_file_systems import check_scheme  # noqa: PLC0415 (imports fsspec)
    from streamer.backends.fsspec.store import FsspecStore  # noqa: PLC0415 (as well)

    refuse_accidental("fsspec.specs", "fsspec")
    check_scheme(fs, path, BUILTIN_SCHEMES)
    scheme = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    has_urls = scheme == AbstractFileSystem.protocol  # HTTP in older fsspec, whose paths are URLs
    scheme = scheme_of(path) if has_urls else scheme
    ours = next((point for point in candidates if is_builtin(point) and point.name == scheme), None)
    options = dict(fs.storage_options)
    for name in [*options] if scheme == "file" else ("asynchronous", "loop"):  # all options of local files are fsspec's
        options.pop(name, None)
    if ours is not None and not fs.storage_args and type(fs) is get_filesystem_class(scheme):
        uri = path if has_urls else fs.unstrip_protocol(str(path))
        store = open_with(ours, scheme, uri, options, limits)
        if store is not None:
            return store
    return FsspecStore.of_instance(fs, path)
