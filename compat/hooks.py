"""Names of other libraries that this package replaces, calls or derives from, and tests whether they still fit.

A hook is tested by its behaviour, never by a version: its name exists, its signature accepts the passed arguments, and
if data goes through it, two small tensors come out equal. Each hook is tested once per process. If a hook does not fit,
the load is slower and one line is logged, but the URL still loads: the caller uses the fallback that `Hook.otherwise`
describes. If there is no fallback, `Hook.demand` raises an error that names the version to install.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from streamer.core.errors import UsageError
from streamer.core.imported import if_imported
from streamer.core.log import OwnLogger
from streamer.core.options.switches_and_sizes import is_on
from streamer.core.quoting import printable

SWITCH = "STREAMER_DISABLE_PATCHES"

_log = OwnLogger()
_REASONS: dict[Hook, str | None] = {}  # the hooks tested in this process; None for a hook that fits


@dataclass(frozen=True)
class Hook:
    """One name of another library. Equal hooks are tested once.

    Two threads may test the same hook at the same time.
    """

    module: str  # the module of the name, for instance ``"transformers.modeling_utils"``
    name: str  # the name in the module; dots lead to attributes
    otherwise: str  # the fallback if the hook does not fit, as a clause: ``"weights are written to a disk first"``
    positional: int = 0  # how many arguments are passed by position
    keywords: tuple[str, ...] = ()  # the arguments that are passed by name
    # Passes two small tensors through the hook; returns whether they came out equal, or raises. Its arguments are those
    # of `misfit`.
    dry_run: Callable[..., bool] | None = None

    @property
    def library(self) -> str:
        """The library of the name."""
        return self.module.partition(".")[0]

    @property
    def label(self) -> str:
        """The full name."""
        return f"{self.module}.{self.name}"

    def found(self) -> Any:
        """Import the module, and return the current value of the name."""
        return reduce(getattr, self.name.split("."), imported(self.module))

    def misfit(self, *arguments: Any) -> str | None:
        """Return why the hook does not fit; None if it fits."""
        if self not in _REASONS:
            _REASONS[self] = _misfit(self, arguments)
        return _REASONS[self]

    def fits(self) -> bool:
        """Whether the hook may be used; if not, a line in the log says why, once per process."""
        if is_on(SWITCH):
            _log_disabled(self)
            return False
        reason = self.misfit()
        if reason is not None:
            _log_misfit(self, printable(reason))
        return reason is None

    def reject(self, reason: str) -> None:
        """Record and log that the hook turned out not to fit when it was used."""
        _REASONS[self] = reason
        _log_misfit(self, printable(reason))

    def demand(self, oldest: str) -> Any:
        """Return the current value of the name, if there is no fallback."""
        reason = self.misfit()
        if reason is not None:
            raise UsageError(
                f"{self.label} of {self.library} {version_of(self.module)} cannot be used: {reason}",
                hint=f"Install {self.library} {oldest}, or a newer version that has this name",
            )
        return self.found()


def imported(module: str) -> ModuleType:
    """Import a module of another library."""
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name is not None
        if is_absent and error.name == library:
            raise UsageError(f"{library} is not installed", hint=f"pip install {library}") from error
        if is_absent and f"{module}.".startswith(f"{error.name}."):
            raise
        raise _broken(library, error) from error
    except Exception as error:
        raise _broken(library, error) from error


def package_with(library: str, cls: Any) -> str:
    """Return the package of a library to which a class belongs: it may be a copy inside another package."""
    for each in getattr(cls, "__mro__", (cls,)):
        parts = str(getattr(each, "__module__", "")).split(".")
        if library in parts:
            return ".".join(parts[: parts.index(library) + 1])
    return library


def version_of(module: str) -> str:
    """Return the version of the library that has a module; use it only in messages."""
    package = module
    while package:  # a copy of a library inside another one has its own version
        found = getattr(if_imported(package), "__version__", None)
        if found is not None:
            return str(found)
        package = package.rpartition(".")[0]
    try:
        return version(module.partition(".")[0])
    except PackageNotFoundError:
        return "of an unknown version"


def _broken(library: str, error: Exception) -> UsageError:
    return UsageError(
        f"{library} is installed, and its import fails: {type(error).__name__}: {error}",
        hint=f"Check with: python -c 'import {library}'",
    )


def _misfit(hook: Hook, arguments: tuple[Any, ...]) -> str | None:
    try:
        found = hook.found()
    except (AttributeError, ModuleNotFoundError) as error:
        return f"there is no such name ({error})"
    reason = _refusal(found, hook)
    if reason is None and hook.dry_run is not None:
        try:
            if not hook.dry_run(*arguments):
                reason = "two small tensors did not come out of it as they went in"
        except Exception as error:
            reason = f"two small tensors did not go through it: {type(error).__name__}: {error}"
    return reason


def _refusal(found: Any, hook: Hook) -> str | None:
    """Return why the signature does not accept the passed arguments; None if it does."""
    if not hook.positional and not hook.keywords:
        return None
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # a C function may have no signature; the dry run decides
        return None
    try:
        signature.bind(*[None] * hook.positional, **dict.fromkeys(hook.keywords))
    except TypeError as error:
        return f"its arguments have changed ({error})"
    return None


@cache
def _log_misfit(hook: Hook, reason: str) -> None:
    _log.warning(
        "%s of %s %s does not fit: %s. So %s. Please report this line as an issue of streamer. "
        "%s=1 uses this fallback without this line",
        hook.label,
        hook.library,
        version_of(hook.module),
        reason,
        hook.otherwise,
        SWITCH,
    )


@cache
def _log_disabled(hook: Hook) -> None:
    _log.info("%s is not used, as %s=1 says; so %s", hook.label, SWITCH, hook.otherwise)


def is_equal(state: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether two states of dry runs have the same names, and tensors of the same dtypes and values."""
    return state.keys() == expected.keys() and all(
        state[name].dtype == expected[name].dtype and state[name].equal(expected[name]) for name in expected
    )
