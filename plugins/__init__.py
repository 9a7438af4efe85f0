"""The names for writing a plug-in and for finding the backend of a URL; ``__all__`` lists them all.

Another distribution adds a storage with an entry point in the group ``streamer.backends``, named like the URL's scheme,
that points to a module (or object) with a `hookimpl` called ``streamer_open_store``. The hook may take any of the
arguments ``scheme``, ``uri``, ``storage_options`` and ``limits``, and returns a `Store`. The suite in
`streamer.plugins.contract` checks the behaviour of the storage. Built-in and other backends are found in the same way,
and each is loaded only when a URL needs it. The errors are those of `streamer`.

A format of checkpoints is added in the same way: an entry point in the group ``streamer.formats``, that points to a
module with a `hookimpl` called ``streamer_format``, which returns a `Format`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamer.backends.option_names import check_option_names
    from streamer.core.errors import (
        AccessDeniedError,
        ChangedError,
        ChecksumError,
        ConnectError,
        CredentialsError,
        FormatError,
        HttpStatusError,
        ObjectNotFoundError,
        OptionError,
        PluginError,
        RangeResponseError,
        RedirectError,
        StorageError,
        StreamerError,
        TlsError,
        TransferTimeoutError,
        TruncatedError,
        UsageError,
    )
    from streamer.core.options.limits import Limits, ListingCount
    from streamer.core.other_formats.interface import (
        BytesFile,
        CheckpointFile,
        CheckpointIndex,
        Format,
        Reader,
        TensorPlace,
    )
    from streamer.core.secrets.texts import note_credential
    from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest
    from streamer.core.store.identities import digest_of
    from streamer.core.store.sources import (
        AnswerChecksum,
        DigestingStore,
        FileSource,
        HttpSource,
        NfsSource,
        ObjectInfo,
        PythonSource,
        RemoteStore,
        Source,
        Store,
        WritableStore,
        hookimpl,
    )
    from streamer.core.store.uploads import Upload, UploadingStore
    from streamer.plugins.inventory import Backend, Examined, ExaminedFormat, examine, examine_formats, installed
    from streamer.plugins.registry import open_store
    from streamer.plugins.requests import HttpAnswer, send_request

__all__ = [
    "AccessDeniedError",
    "AnswerChecksum",
    "Backend",
    "BytesFile",
    "ChangedError",
    "CheckpointFile",
    "CheckpointIndex",
    "ChecksumError",
    "ConnectError",
    "CredentialsError",
    "DigestingStore",
    "Examined",
    "ExaminedFormat",
    "FileSource",
    "Format",
    "FormatError",
    "HttpAnswer",
    "HttpSource",
    "HttpStatusError",
    "Limits",
    "ListingCount",
    "NfsSource",
    "NoDigest",
    "ObjectDigest",
    "ObjectInfo",
    "ObjectNotFoundError",
    "OptionError",
    "PartDigest",
    "PluginError",
    "PythonSource",
    "RangeResponseError",
    "Reader",
    "RedirectError",
    "RemoteStore",
    "Source",
    "StorageError",
    "Store",
    "StreamerError",
    "TensorPlace",
    "TlsError",
    "TransferTimeoutError",
    "TruncatedError",
    "Upload",
    "UploadingStore",
    "UsageError",
    "WritableStore",
    "check_option_names",
    "digest_of",
    "examine",
    "examine_formats",
    "hookimpl",
    "installed",
    "note_credential",
    "open_store",
    "send_request",
]

_NAMES_IN = {
    "streamer.core.store.sources": (
        "AnswerChecksum DigestingStore FileSource HttpSource NfsSource ObjectInfo PythonSource RemoteStore "
        "Source Store WritableStore hookimpl"
    ),
    "streamer.plugins.inventory": "Backend Examined ExaminedFormat examine examine_formats installed",
    "streamer.core.other_formats.interface": "BytesFile CheckpointFile CheckpointIndex Format Reader TensorPlace",
    "streamer.core.options.limits": "Limits ListingCount",
    "streamer.core.store.digests": "NoDigest ObjectDigest PartDigest",
    "streamer.core.store.uploads": "Upload UploadingStore",
    "streamer.backends.option_names": "check_option_names",
    "streamer.plugins.registry": "open_store",
    "streamer.plugins.requests": "HttpAnswer send_request",
    "streamer.core.store.identities": "digest_of",
    "streamer.core.secrets.texts": "note_credential",
}
_DEFINED_IN = {
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "streamer.core.errors"),
    **{name: module for module, names in _NAMES_IN.items() for name in names.split()},
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562): a load needs few of them."""
    home = _DEFINED_IN.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
