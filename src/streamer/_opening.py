"""What the user asked for when he opened a checkpoint, kept so that it can be opened again in another process."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from streamer._locate import StorageOptions, UriOption, folders_of
from streamer._opened_checkpoint import OpenedCheckpoint, open_checkpoint
from streamer._progress import ProgressOption
from streamer.core.checkpoint.selection import NamesOption
from streamer.core.checkpoint.strategies import VerifyOption
from streamer.core.errors import UsageError
from streamer.core.options.options import Options
from streamer.core.outages.earlier_counters import EarlierCounters
from streamer.core.store.sources import ObjectInfo
from streamer.core.tensors.frameworks import Framework, framework_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Opening"]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The arguments of `streamer.open`, with its names; a pickle of it holds the credentials that were given."""

    uri: UriOption = field(repr=False)
    device: Any = "cpu"
    names: NamesOption = None
    framework: str = "pt"
    storage_options: StorageOptions = field(default=None, repr=False)
    fs: AbstractFileSystem | None = field(default=None, repr=False)
    options: Options | None = None
    progress: ProgressOption = None
    dtype: Any = None
    verify: VerifyOption = None

    def library(self, device: Any = None, dtype: Any = None) -> Framework:
        """Give the framework of the tensors, on another device or with another dtype unless these are None.

        Raises:
            OptionError: unknown framework or dtype.
            UnknownDeviceError: torch does not have the device.
        """
        return framework_of(
            self.framework,
            self.device if device is None else device,
            self.dtype if dtype is None else dtype,
            folders_of(self.uri),
        )

    def check_pickled(self) -> None:
        """Check that a process elsewhere can get all arguments.

        Raises:
            UsageError: one of them cannot be pickled, and nobody here has a pickler (cloudpickle) that may do it.
        """
        if any(name.rpartition(".")[2] == "cloudpickle" for name in list(sys.modules)):
            return
        for each in fields(self):
            try:
                pickle.dumps(getattr(self, each.name))
            except Exception as error:
                message = f"this checkpoint cannot be pickled, as its {each.name}= cannot: {error}"
                raise UsageError(message, hint="Open it in the other process, or pass what can be pickled") from error

    def opened(self, listed: Sequence[ObjectInfo] | None = None) -> OpenedCheckpoint:
        """Locate the checkpoint, `listed` as for `locate`, and read its headers; raises as `streamer.load` does."""
        checkpoint = open_checkpoint(self.uri, self.storage_options, self.options, self.fs, self.verify, listed=listed)
        # Each read has the whole deadline, and a report of its own.
        checkpoint.settings = replace(checkpoint.settings, began=None, earlier=EarlierCounters())
        checkpoint.stages = {}
        return checkpoint
