"""A private folder that stands for a model's folder at a URL: it holds the model's small files, but not its weights.

Libraries that load only from folders read configuration and tokenizer from it. The weights stay at the URL
(`FolderWeights`); an empty file may stand for one ``.safetensors`` file. Refuses, before anything is loaded: a folder
without a checkpoint or configuration, an index that names an absent shard, an adapter without weights.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streamer.core.errors import FormatError, OptionError, UsageError
from streamer.core.folders.private_folders import private_folder
from streamer.core.options.settings import resolve
from streamer.core.shards.small_files import folder_files
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo
from streamer.integrations.folder_weights import FolderWeights
from streamer.integrations.library_calls import Location
from streamer.integrations.naming import CONFIG, TRANSFORMERS, Naming, without
from streamer.integrations.small_files import files_of_sub_folders, write_small_files

ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"


class ModelFolder:
    """The private folder of a model, which a library loads; it exists until `close`."""

    def __init__(
        self,
        location: Location,
        *,
        naming: Naming = TRANSFORMERS,
        path: str | None = None,  # an existing folder to fill, which is not removed here
        variant: str | None = None,
        needs: str | None = CONFIG,  # the configuration file that must exist
        needs_weights: bool | None = True,  # None: only if there is a model's configuration and no tokenizer
        takes_code: bool = False,  # the user trusts the folder's code, which is then pulled, too
        takes_parts: bool = False,  # the library will request rows of tensors
        goes_to_devices: bool = False,
    ) -> None:
        self._goes_to_devices = goes_to_devices
        self._location, self._naming, self._variant, self._takes_parts = location, naming, variant, takes_parts
        self._needs, self._needs_weights = needs, needs_weights
        self._weights: FolderWeights | None = None
        self._others: list[FolderWeights] = []
        self._written: list[FolderWeights] = []
        self.base: ModelFolder | None = None
        self._has_adapter = False
        self._own: tempfile.TemporaryDirectory[str] | None = None
        if path is None:
            self._own = private_folder()
            path = self._own.name
        self.path = os.path.abspath(path)
        try:
            is_adapter = self._pull(takes_code=takes_code)
            if is_adapter:
                self._find_base(takes_code=takes_code, takes_parts=takes_parts)
        except BaseException:
            self.close()
            raise

    @property
    def shards(self) -> list[str]:
        """The names of the files of weights."""
        return [] if self._weights is None else self._weights.shards

    @property
    def labels(self) -> dict[str, str]:
        """The URL, without secrets, that each private folder stands for."""
        return {self.path: self._location.label, **({} if self.base is None else self.base.labels)}

    def opened(self, path: str, framework: str = "pt", device: Any = "cpu", **others: Any) -> Any:
        """Open a shard as ``safe_open`` does; return None for a file that exists in the folder."""
        handle = None if self._weights is None else self._weights.opened(path, framework, device, **others)
        if handle is not None or os.path.exists(path):
            return handle
        location = self._location.inside(os.path.relpath(path, self.path))  # an adapter's weights
        beside = FolderWeights(os.path.dirname(path), location, takes_parts=self._takes_parts)
        self._others.append(beside)
        return beside.opened(path, framework, device, **others)

    def loaded(self, path: str, *arguments: Any, **named: Any) -> dict[str, Any] | None:
        """Load a shard as `FolderWeights.loaded` does."""
        return self._weights.loaded(path, *arguments, **named) if self._weights is not None else None

    def place(self, device_map: Mapping[str, Any]) -> None:
        """Read tensors of whole shards directly to their devices; as `FolderWeights.place`."""
        if self._weights is not None:
            self._weights.place(device_map)

    @property
    def is_read(self) -> bool:
        """Whether there are no weights, or some were opened through `opened` or `loaded`."""
        return self._weights is None or self._weights.is_read or bool(self._others)

    @property
    def is_written(self) -> bool:
        """Whether the weights were written as real files."""
        return bool(self._written)

    def write_weights(self) -> None:
        """Write all weights as real files, also those of an adapter and its base; raises as `write_weight_files`."""
        if self._has_adapter:
            self._others.append(FolderWeights(self.path, self._location.inside(ADAPTER)))
        for each in filter(None, (self._weights, *self._others)):
            self._written.append(each)
            each.write_weights()
        if self.base is not None:
            self.base.write_weights()

    def remove_weights(self) -> None:
        """Remove the files of `write_weights`; existing memory maps of them stay valid."""
        while self._written:
            self._written.pop().remove_weights()
        if self.base is not None:
            self.base.remove_weights()

    def stop(self) -> None:
        """Stop reading in the background; tensors that are requested later are read one by one."""
        for each in (self._weights, *self._others, self.base):
            if each is not None:
                each.stop()

    def close(self) -> None:
        """Remove the folder, and end the reads of threads that still request weights."""
        for each in (self._weights, *self._others):
            if each is not None:
                each.cancel()
        if self._own is not None:
            self._own.cleanup()
        if self.base is not None:
            self.base.close()

    def _pull(self, *, takes_code: bool) -> bool:
        """Fill the folder and open the checkpoint in parallel; return whether it is an adapter without its model."""
        location, settings = self._location, resolve(self._location.options)
        with location.store(settings) as store:
            listed = folder_files(store, self._naming.usual)
            needs_weights, is_adapter = self._checked(listed)
            chosen = self._naming.choose(listed, self._variant, location) if needs_weights and not is_adapter else None
            small = listed if needs_weights else {**files_of_sub_folders(store, location.label), **listed}
            jobs: list[Callable[[], None]] = [
                lambda: write_small_files(self.path, store, small, settings, takes_code=takes_code)
            ]
            if chosen is not None:
                jobs.insert(0, lambda: self._open(chosen.location, listed))
            in_parallel(lambda job: job(), jobs, role="model")
        if self._weights is not None and chosen is not None:
            if chosen.index is not None:
                self._weights.write_index(chosen.index, without=ADAPTER)
            if chosen.has_files:
                self._weights.write_empty_files()
        return is_adapter and needs_weights

    def _checked(self, listed: Mapping[str, ObjectInfo]) -> tuple[bool, bool]:
        """Return whether weights are needed, and whether they are an adapter's."""
        location, needs_weights = self._location, self._needs_weights
        if not listed:
            raise without(CONFIG, listed, location, "")
        if needs_weights is None:
            needs_weights = CONFIG in listed and "tokenizer_config.json" not in listed
        if needs_weights:
            _check_adapter(listed, location)
            self._has_adapter = ADAPTER in listed and find_spec("peft") is not None
        is_adapter = ADAPTER_CONFIG in listed and CONFIG not in listed
        if self._needs is not None and self._needs not in listed and not is_adapter:
            raise without(self._needs, listed, location, "Save it with save_pretrained, or pass config=")
        return needs_weights, is_adapter

    def _open(self, weights: Location, listed: Mapping[str, ObjectInfo]) -> None:
        self._weights = FolderWeights(
            self.path,
            weights,
            listed=[*listed.values()],
            takes_parts=self._takes_parts,
            goes_to_devices=self._goes_to_devices,
        )

    def _find_base(self, *, takes_code: bool, takes_parts: bool) -> None:
        """Create a folder for the base model of an adapter, if it is at a URL."""
        path = Path(self.path, ADAPTER_CONFIG)
        config = _adapter_config(path, self._location)
        base = config["base_model_name_or_path"]
        if "://" not in base:
            return  # a path or a name of the Hub: libraries find it by themselves
        self.base = ModelFolder(replace(self._location, uri=base), takes_code=takes_code, takes_parts=takes_parts)
        path.write_text(json.dumps({**config, "base_model_name_or_path": self.base.path}))


def _check_adapter(listed: Mapping[str, ObjectInfo], location: Location) -> None:
    if ADAPTER_CONFIG not in listed:
        return
    if find_spec("peft") is None:
        if CONFIG in listed:
            return  # libraries load the model without the adapter
        raise UsageError("this is an adapter, which needs peft", uri=location.label, hint="pip install peft")
    if ADAPTER not in listed:
        raise without(ADAPTER, listed, location, "Save the adapter again, as safetensors")


def _adapter_config(path: Path, location: Location) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
        if isinstance(config["base_model_name_or_path"], str):
            return dict(config)
    except (KeyError, TypeError, ValueError):
        pass
    raise FormatError(
        "the adapter's configuration names no model that it belongs to",
        uri=location.inside(ADAPTER_CONFIG).label,
        hint="Set its base_model_name_or_path to a path, a URL or a name of the Hub",
    )


class SingleFile:
    """The private folder of a single file of safetensors; it exists until `close`."""

    def __init__(self, location: Location) -> None:
        if not location.uri.partition("?")[0].endswith(".safetensors"):
            hint = "Convert it, or download it"
            raise OptionError("only .safetensors files are read from a URL", uri=location.label, hint=hint)
        self._location = location
        self._folder = private_folder()
        self.path = os.path.abspath(self._folder.name)
        try:
            self._weights = FolderWeights(self.path, location)
            self._weights.write_empty_files()
        except BaseException:
            self._folder.cleanup()
            raise
        self.shards = self._weights.shards
        self.file_path = os.path.join(self.path, self.shards[0])

    @property
    def labels(self) -> dict[str, str]:
        """The URL, without secrets, that the file stands for."""
        return {self.file_path: self._location.label}

    @property
    def is_read(self) -> bool:
        """Whether the file was opened through `opened` or `loaded`."""
        return self._weights.is_read

    def write_weights(self) -> None:
        """Write the real file; raises as `write_weight_files`."""
        self._weights.write_weights()

    def opened(self, path: str, *arguments: Any, **named: Any) -> Any:
        """Open the file as ``safe_open`` does; return None for any other file."""
        return self._weights.opened(path, *arguments, **named)

    def loaded(self, path: str, *arguments: Any, **named: Any) -> dict[str, Any] | None:
        """Load the file as ``load_file`` of safetensors does; return None for any other file."""
        return self._weights.loaded(path, *arguments, **named)

    def stop(self) -> None:
        """Stop reading in the background."""
        self._weights.stop()

    def close(self) -> None:
        """Remove the folder."""
        self.stop()
        self._folder.cleanup()
