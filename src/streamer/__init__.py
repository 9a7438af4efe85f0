"""Model weights from any storage into CPU or GPU memory: fast, complete, or an error that says why.

    >>> import streamer
    >>> tensors = streamer.load("s3://bucket/model", device="cuda:0")        # doctest: +SKIP

Everything public is listed in ``__all__``; every other name may change. Importing this package imports
neither torch nor fsspec and starts nothing.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from streamer.core import VERSION

if TYPE_CHECKING:
    from streamer import plugins
    from streamer._async import AsyncStream, aload, astream
    from streamer._lazy_checkpoint import Checkpoint, open, safe_open  # noqa: A004  streamer.open is the public name
    from streamer._load import load, load_file
    from streamer._load_into import load_into
    from streamer._manifest import ManifestReport, write_manifest
    from streamer._pull.record import PullReport
    from streamer._push.copies import copy, pull, push
    from streamer._push.publish import PublishReport, publish
    from streamer._push.report import PushReport
    from streamer._release import release, release_pinned_memory
    from streamer._save.save import asave, save, save_model
    from streamer._save.saving import SaveReport
    from streamer._stream import Stream, stream
    from streamer._versions import watch
    from streamer.compat.patches import patch, patched, unpatch
    from streamer.core.checkpoint.parallel_plans import Placements, TensorParallel
    from streamer.core.checkpoint.report import LoadReport
    from streamer.core.checkpoint.tensor_parts import Slice
    from streamer.core.encryption.keys import DataKey, KeyProvider
    from streamer.core.encryption.secret_keys import Passphrase
    from streamer.core.errors import (
        AccessDeniedError,
        ChangedError,
        ChecksumError,
        ConnectError,
        CredentialsError,
        DeviceError,
        EncryptionKeyError,
        EngineError,
        FormatError,
        GroupError,
        HeaderError,
        HttpStatusError,
        LoadCancelledError,
        ManifestError,
        MissingShardError,
        ObjectNotFoundError,
        OptionError,
        OutOfMemoryError,
        PluginError,
        RangeResponseError,
        RedirectError,
        ShardIndexError,
        StorageError,
        StreamerError,
        TamperedError,
        TargetError,
        TensorIndexError,
        TlsError,
        TransferTimeoutError,
        TruncatedError,
        UnknownDeviceError,
        UnknownSchemeError,
        UnknownTensorError,
        UnsupportedDtypeError,
        UsageError,
    )
    from streamer.core.options.options import Options
    from streamer.core.store.sources import hookimpl
    from streamer.integrations import accelerate, dcp, diffusers, fsspec, ray, transformers

__version__ = VERSION

__all__ = [
    "AsyncStream",
    "Checkpoint",
    "DataKey",
    "KeyProvider",
    "LoadReport",
    "ManifestReport",
    "Options",
    "Passphrase",
    "Placements",
    "PublishReport",
    "PullReport",
    "PushReport",
    "SaveReport",
    "Slice",
    "Stream",
    "TensorParallel",
    "AccessDeniedError",
    "ChangedError",
    "ChecksumError",
    "ConnectError",
    "CredentialsError",
    "DeviceError",
    "EncryptionKeyError",
    "EngineError",
    "FormatError",
    "GroupError",
    "HeaderError",
    "HttpStatusError",
    "LoadCancelledError",
    "ManifestError",
    "MissingShardError",
    "ObjectNotFoundError",
    "OptionError",
    "OutOfMemoryError",
    "PluginError",
    "RangeResponseError",
    "RedirectError",
    "ShardIndexError",
    "StorageError",
    "StreamerError",
    "TamperedError",
    "TargetError",
    "TensorIndexError",
    "TlsError",
    "TransferTimeoutError",
    "TruncatedError",
    "UnknownDeviceError",
    "UnknownSchemeError",
    "UnknownTensorError",
    "UnsupportedDtypeError",
    "UsageError",
    "accelerate",
    "aload",
    "asave",
    "astream",
    "copy",
    "dcp",
    "diffusers",
    "fsspec",
    "hookimpl",
    "load",
    "load_file",
    "load_into",
    "open",
    "patch",
    "patched",
    "plugins",
    "publish",
    "pull",
    "push",
    "ray",
    "release",
    "release_pinned_memory",
    "safe_open",
    "save",
    "save_model",
    "stream",
    "transformers",
    "unpatch",
    "watch",
    "write_manifest",
]

_DEFINED_IN = {
    "AsyncStream": "streamer._async",
    "aload": "streamer._async",
    "astream": "streamer._async",
    "Checkpoint": "streamer._lazy_checkpoint",
    "open": "streamer._lazy_checkpoint",
    "load": "streamer._load",
    "load_file": "streamer._load",
    "load_into": "streamer._load_into",
    "ManifestReport": "streamer._manifest",
    "write_manifest": "streamer._manifest",
    "copy": "streamer._push.copies",
    "pull": "streamer._push.copies",
    "push": "streamer._push.copies",
    "PullReport": "streamer._pull.record",
    "PushReport": "streamer._push.report",
    "PublishReport": "streamer._push.publish",
    "publish": "streamer._push.publish",
    "watch": "streamer._versions",
    "release": "streamer._release",
    "release_pinned_memory": "streamer._release",
    "safe_open": "streamer._lazy_checkpoint",
    "SaveReport": "streamer._save.saving",
    "asave": "streamer._save.save",
    "save": "streamer._save.save",
    "save_model": "streamer._save.save",
    "Stream": "streamer._stream",
    "stream": "streamer._stream",
    "patch": "streamer.compat.patches",
    "patched": "streamer.compat.patches",
    "unpatch": "streamer.compat.patches",
    "DataKey": "streamer.core.encryption.keys",
    "KeyProvider": "streamer.core.encryption.keys",
    "Passphrase": "streamer.core.encryption.secret_keys",
    "Options": "streamer.core.options.options",
    "LoadReport": "streamer.core.checkpoint.report",
    "Placements": "streamer.core.checkpoint.parallel_plans",
    "Slice": "streamer.core.checkpoint.tensor_parts",
    "TensorParallel": "streamer.core.checkpoint.parallel_plans",
    "hookimpl": "streamer.core.store.sources",
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "streamer.core.errors"),
}


_MODULES = {
    "plugins": "streamer.plugins",
    **{
        name: f"streamer.integrations.{name}"
        for name in ("accelerate", "dcp", "diffusers", "fsspec", "ray", "transformers")
    },
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    home = _MODULES.get(name) or _DEFINED_IN.get(name)
    if home is None:
        raise AttributeError(f"module 'streamer' has no attribute {name!r}")
    module = _imported(home)
    if name in _MODULES:
        return module
    value = getattr(module, name)
    globals()[name] = value
    return value


def _imported(module: str) -> Any:
    if module in sys.modules:  # imported, or being imported by another thread
        return importlib.import_module(module)
    from streamer.core.collector import collector_paused  # noqa: PLC0415 (imported with the first name)

    with collector_paused():
        return importlib.import_module(module)


class _NamedModule(ModuleType):
    """Lets ``import streamer.transformers`` find the module of this name, which is imported when it is used."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{__name__}.{name}", f"See `{_MODULES[name]}`.")
        self._name = name
        self.__spec__ = ModuleSpec(self.__name__, None)

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") and name != "__all__"
        ):  # tools look at all modules for such names, and must not import a host
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(_imported(_MODULES[self._name]), name)

    def __dir__(self) -> list[str]:
        return dir(_imported(_MODULES[self._name]))

    def __reduce__(self) -> tuple[Any, ...]:  # cloudpickle sends it with a function that names it
        return importlib.import_module, (self.__name__,)


sys.modules.update({f"{__name__}.{name}": _NamedModule(name) for name in _MODULES if name != "plugins"})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
