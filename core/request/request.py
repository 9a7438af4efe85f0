"""The arguments of a call of a public function: one value, which is checked once and then passed on.

Guarantees: every field has a valid type; URIs are text, without path objects; no `repr` shows a secret. To add an
argument to all public functions, add a field here, its line in their signatures and in
`streamer._arguments.LoadArguments`, and its paragraph in the docstring of `streamer.load`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from streamer.core.checkpoint.selection import NamesOption, checked_names
from streamer.core.errors import UsageError
from streamer.core.options.arguments import (
    check_file_system,
    check_group,
    check_options,
    check_progress,
    check_storage_options,
    checked_uris,
)
from streamer.core.options.options import Options
from streamer.core.path_objects import PathObject, text_of, without_path_objects

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption, KeySource
    from streamer.core.verification.strategy import VerifyOption

OneUri: TypeAlias = "str | os.PathLike[str] | PathObject"
UriOption: TypeAlias = "OneUri | Iterable[OneUri]"
StorageOptions: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None"
# None: a bar on a terminal or in a notebook, else the log; a bool: a bar, or nothing; a callable: called with
# (bytes done, bytes in all).
ProgressOption: TypeAlias = bool | Callable[[int, int], None] | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of a call, by the same names as in `streamer.load`, whose docstring describes them.

    A pickle of it holds the caller's credentials.
    """

    uri: UriOption = field(repr=False)
    device: Any = "cpu"
    names: NamesOption = None
    slices: SlicesOption = None
    framework: str = "pt"
    storage_options: StorageOptions = field(default=None, repr=False)
    fs: AbstractFileSystem | None = field(default=None, repr=False)
    options: Options | None = None
    progress: ProgressOption = None
    dtype: Any = None
    verify: VerifyOption = None
    key: KeyOption = field(default=None, repr=False)
    context: str | None = None
    group: Any = None

    def __post_init__(self) -> None:
        passed = checked_uris(self.uri)
        check_storage_options(self.storage_options)
        check_file_system(self.fs)
        check_options(self.options, Options)
        check_progress(self.progress)
        check_group(self.group)
        if self.context is not None and self.key is None:
            raise UsageError("context= names what a key was used for, and so needs key=")
        if self.key is not None and self.group is not None:
            hint = "Let each rank load alone: group=None; ranks of one node share what they read"
            raise UsageError("group= does not read encrypted checkpoints", hint=hint)
        uri, storage_options, fs = without_path_objects(passed, self.storage_options, self.fs)
        vars(self).update(  # because `__setattr__` of a frozen value refuses
            uri=[text_of(each) for each in uri] if isinstance(uri, list) else text_of(uri),
            storage_options=_copied(storage_options),
            fs=fs,
            names=checked_names(self.names),
            slices=None if self.slices is None else _checked_slices(self.slices),
            key=None if self.key is None else _key_source(self.key, self.context),
        )

    @property
    def uris(self) -> list[str]:
        """The URIs, in the order of the caller."""
        uris: Any = self.uri
        return [uris] if isinstance(uris, str) else [*uris]

    @property
    def key_source(self) -> KeySource | None:
        """The key, which was checked."""
        return self.key  # type: ignore[return-value]  # `__post_init__` has replaced it

    def check_pickled(self) -> None:
        """Check that all arguments can be sent to another process."""
        if any(name.rpartition(".")[2] == "cloudpickle" for name in list(sys.modules)):
            return
        for each in fields(self):
            try:
                pickle.dumps(getattr(self, each.name))
            except Exception as error:
                message = f"this checkpoint cannot be pickled, as its {each.name}= cannot: {error}"
                raise UsageError(message, hint="Open it in the other process, or pass what can be pickled") from error


def _copied(storage_options: Any) -> Any:
    """Copy the mappings, which the caller may change while a checkpoint is open."""
    if storage_options is None or isinstance(storage_options, Mapping):
        return None if storage_options is None else {name: _own(each) for name, each in storage_options.items()}
    return [_copied(each) for each in storage_options]


def _own(value: Any) -> Any:
    """Copy plain dicts and lists at any depth; other values may have an identity, as a session has."""
    if type(value) is dict:
        return {name: _own(each) for name, each in value.items()}
    return [*map(_own, value)] if type(value) is list else value


def _checked_slices(slices: SlicesOption) -> SlicesOption:
    from streamer.core.checkpoint.slices import checked_slices  # noqa: PLC0415 (as needed)

    return checked_slices(slices)


def _key_source(key: KeyOption, context: str | None) -> KeySource:
    from streamer.core.encryption.keys import KeySource  # noqa: PLC0415 (as needed)

    return KeySource(key, context).check()
