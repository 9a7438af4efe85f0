"""Calls ``from_pretrained`` of a library for a private folder that stands for the URL of a model.

A process loads one model at a time: transformers and diffusers change torch's default dtype, and the functions that
initialise and tie weights, for all threads while they load. Messages of the call name the URL, not the folder.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamer._locate_shards import opened_store
from streamer.core.errors import OptionError, UsageError
from streamer.core.options.arguments import check_uri
from streamer.core.options.settings import Settings
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import ObjectInfo, Store

if TYPE_CHECKING:
    from streamer.integrations.shard_handles import WholeCheckpoint

_OF_LOAD = {
    "key": "Make the model of its configuration, and fill it with streamer.load_into(model, url, key=…)",
    "verify": "Check the files with python -m streamer verify, or set STREAMER_VERIFY",
}

_ONE_MODEL = threading.RLock()  # a model's own code may load another one
_LIBRARIES = ("diffusers", "transformers")


@contextmanager
def library_call(labels: Mapping[str, str], *, loads_model: bool) -> Iterator[None]:
    """Show URLs in place of private folders in the messages of a library that is called inside of the block."""
    with _ONE_MODEL if loads_model else nullcontext(), _labelled_messages(labels):
        try:
            yield
        except Exception as error:
            error.args = tuple(_labelled(each, labels) for each in error.args)
            raise


def refuse_arguments_of_load(named: Mapping[str, Any]) -> None:
    """Refuse arguments of `streamer.load` that a library would ignore, or pass on to the code of a model."""
    for name in sorted(_OF_LOAD.keys() & named.keys()):
        what = f"{name}= is an argument of streamer.load, which the library does not know"
        raise OptionError(what, hint=_OF_LOAD[name])


def check_class(cls: Any, method: str) -> None:
    """Refuse a first argument that is no class of a library, for instance the URL."""
    if not callable(getattr(cls, method, None)):
        raise UsageError(
            f"the first argument, of the type {type(cls).__name__}, has no method {method}",
            hint="Pass the class first, and the URL after it",
        )


@contextmanager
def _labelled_messages(labels: Mapping[str, str]) -> Iterator[None]:
    def label(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        labelled = _labelled(message, labels)
        if labelled != message:
            record.msg, record.args = labelled, ()
        return True

    handlers = [handler for library in _LIBRARIES for handler in logging.getLogger(library).handlers]
    for handler in handlers:
        handler.addFilter(label)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(label)


def _labelled(message: Any, labels: Mapping[str, str]) -> Any:
    if isinstance(message, str):
        for path, label in labels.items():
            message = message.replace(path, label)
    return message


@dataclass(frozen=True, repr=False, kw_only=True)
class Location(Request):
    """A folder, or an object in it, and how it is read: a request with one URI."""

    uri: Any = field(repr=False)  # a string, after it was checked
    storage_options: Mapping[str, Any] | None = None
    progress: ProgressOption = False

    def __post_init__(self) -> None:
        check_uri(self.uri)
        super().__post_init__()

    @property
    def label(self) -> str:
        """The URL without secrets."""
        return redact(self.uri)

    def inside(self, name: str) -> Location:
        """Return the location of a file or folder in this folder."""
        path, mark, query = self.uri.partition("?") if self.uri.lower().startswith("http") else (self.uri, "", "")
        return replace(self, uri=f"{path.rstrip('/')}/{name}{mark}{query}")

    def checkpoint(self, listed: Sequence[ObjectInfo] | None = None) -> WholeCheckpoint:
        """Open the checkpoint at this location, with `listed` as for `shards_in`; raises as `streamer.load`."""
        # This module needs safetensors, which only the host libraries install.
        from streamer.integrations.shard_handles import WholeCheckpoint  # noqa: PLC0415

        return WholeCheckpoint(self, listed)

    @contextmanager
    def store(self, settings: Settings) -> Iterator[Store]:
        """Open the store for a ``with`` block."""
        with opened_store(self.uri, self.storage_options, self.fs, settings) as store:
            yield store
