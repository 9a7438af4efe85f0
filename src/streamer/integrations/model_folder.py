"""A private folder that stands for a model's folder at a URL: it has all of its small files, and none of its weights.

Libraries that load from folders alone read configuration and tokenizer there. The weights stay where they are: an index
names the shards, and whoever opens one through `ModelFolder.opened` reads from the URL. Refused before anything is
loaded: a folder without a checkpoint or configuration, an index that names an absent shard, an adapter without weights.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors

from streamer.core.checkpoint.small_files import folder_files, read_files
from streamer.core.errors import FormatError, ObjectNotFoundError, UsageError
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import printable
from streamer.core.store.glances import enumerated
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store
from streamer.integrations.location import Location
from streamer.integrations.read_ahead import ReadAhead
from streamer.integrations.shard_handles import WholeCheckpoint

__all__ = ["ModelFolder"]

CONFIG, ADAPTER_CONFIG, ADAPTER = "config.json", "adapter_config.json", "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
SMALL_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
LARGEST_BYTES = 128 << 20  # of a file that is pulled: a tokenizer.json has 40 MB; data that lies beside has more
# Asked for where listing is forbidden.
USUAL_NAMES = (
    *(CONFIG, "generation_config.json", "model.safetensors", INDEX, ADAPTER_CONFIG, ADAPTER),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)

_log = logging.getLogger("streamer")


class ModelFolder:
    """The folder; it exists until `close`.

    Args:
        location: Of the model.
        variant: Which weights: ``"fp16"`` for ``model.fp16.safetensors``.
        needs_config: Whether a configuration must be there.
        needs_weights: Whether a model is loaded from it.
        takes_code: Whether ``*.py`` are pulled, too.
        reads_ahead: Whole tensors are read before they are asked for.

    Attributes:
        path: Its absolute path.
        base: The folder of the model to which an adapter belongs, where that model is at a URL.

    Raises:
        StreamerError: see above; and as `streamer.load`.
    """

    def __init__(
        self,
        location: Location,
        *,
        variant: str | None = None,
        needs_config: bool = True,
        needs_weights: bool = True,
        takes_code: bool = False,
        reads_ahead: bool = True,
    ) -> None:
        self._location, self._reads_ahead = location, reads_ahead
        self._checkpoint: WholeCheckpoint | None = None
        self._plans: list[ReadAhead] = []
        self._shards: frozenset[str] = frozenset()
        self.base: ModelFolder | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="streamer-")
        self.path = os.path.abspath(self._folder.name)
        suffixes = (*SMALL_SUFFIXES, ".py") if takes_code else SMALL_SUFFIXES
        try:
            is_adapter = self._pull(suffixes, variant, needs_config, needs_weights)
            if is_adapter:
                self._find_base(takes_code=takes_code, reads_ahead=reads_ahead)
        except BaseException:
            self.close()
            raise

    def opened(self, path: str, framework: str = "pt", device: Any = "cpu", **others: Any) -> Any:
        """Open a shard as ``safe_open`` does; None for a file that is really in the folder.

        A file in the page cache is mapped by safetensors itself, which copies nothing, unless there are options.

        Args:
            path: Below the folder.
            framework: Of the tensors.
            device: Of the tensors.
            others: Of safetensors' own handle.
        """
        if framework not in ("pt", "torch", "pytorch") or os.path.exists(path):
            return None
        name = os.path.relpath(path, self.path)
        if self._checkpoint is not None and name in self._shards:
            warm = self._checkpoint.warm_file(name) if self._location.options is None else None
            if warm is not None:
                return safetensors.safe_open(warm, framework, device, **others)
            return self._checkpoint.opened_shard(name, device, self._plans[0] if self._plans else None)
        other = self._location.inside(name).checkpoint()  # an adapter's weights
        plan = other.read_ahead()
        self._plans.append(plan)
        return other.opened_shard(os.path.basename(name), device, plan if self._reads_ahead else None)

    def stop(self) -> None:
        """Read nothing more in the background; what is still asked for is read on its own."""
        for plan in self._plans:
            plan.stop()
        if self.base is not None:
            self.base.stop()

    def close(self) -> None:
        """Remove the folder."""
        self.stop()
        self._folder.cleanup()
        if self.base is not None:
            self.base.close()

    def _pull(self, suffixes: tuple[str, ...], variant: str | None, needs_config: bool, needs_weights: bool) -> bool:
        """Fill the folder and open the checkpoint, at the same time; tell whether it is an adapter alone."""
        location, settings = self._location, resolve(self._location.options)
        with location.store(settings) as store:
            listed = folder_files(store, USUAL_NAMES)
            if not listed:
                raise ObjectNotFoundError(
                    "there is no such folder, or it is empty", uri=location.label, hint="Check its name"
                )
            if needs_weights:
                _check_adapter(listed, location)
            is_adapter = ADAPTER_CONFIG in listed and CONFIG not in listed
            if needs_config and CONFIG not in listed and not is_adapter:
                raise _without(CONFIG, listed, location, "Save the model with save_pretrained, or give config=")
            jobs: list[Callable[[], None]] = [lambda: self._write(store, listed, suffixes, settings)]
            if needs_weights and not is_adapter:
                jobs.insert(0, lambda: self._open(_weights(listed, variant, location)))
            in_parallel(lambda job: job(), jobs, role="model")
        if self._checkpoint is not None:
            self._write_index(self._checkpoint, variant)
        return is_adapter and needs_weights

    def _open(self, weights: Location) -> None:
        self._checkpoint = weights.checkpoint()
        if self._reads_ahead:
            self._plans.append(self._checkpoint.read_ahead())

    def _write(self, store: Store, listed: Mapping[str, ObjectInfo], suffixes: tuple[str, ...], how: Settings) -> None:
        infos = {name: info for name, info in listed.items() if name.endswith(suffixes) and "\0" not in name}
        for name, info in list(infos.items()):
            if (info.size_bytes or 0) > LARGEST_BYTES:
                _log.warning("%s: not pulled, as it is no small file", printable(info.uri))
                del infos[name]
        for name, content in zip(infos, read_files(store, list(infos.values()), how), strict=True):
            Path(self.path, name).write_bytes(content)

    def _write_index(self, checkpoint: WholeCheckpoint, variant: str | None) -> None:
        """Write which shard holds which tensor; with the metadata of the checkpoint's own index."""
        shard_of = checkpoint.shard_of_tensor()
        if len(set(shard_of.values())) > 1:
            shard_of = {name: shard for name, shard in shard_of.items() if shard != ADAPTER}
        self._shards = frozenset(shard_of.values())
        own = Path(self.path, INDEX)
        metadata = json.loads(own.read_bytes()).get("metadata") if own.exists() else None
        name = f"model.safetensors.index.{variant}.json" if variant else INDEX
        Path(self.path, name).write_text(json.dumps({"metadata": metadata or {}, "weight_map": shard_of}))

    def _find_base(self, *, takes_code: bool, reads_ahead: bool) -> None:
        """Make a folder for the model of an adapter, too, if that is at a URL."""
        path = Path(self.path, ADAPTER_CONFIG)
        config = _adapter_config(path, self._location)
        base = config["base_model_name_or_path"]
        if "://" not in base:
            return  # a path or a name of the Hub, which libraries find themselves
        self.base = ModelFolder(replace(self._location, uri=base), takes_code=takes_code, reads_ahead=reads_ahead)
        path.write_text(json.dumps({**config, "base_model_name_or_path": self.base.path}))


def _weights(listed: Iterable[str], variant: str | None, location: Location) -> Location:
    """Choose as libraries do: one file before an index, and these before other names."""
    stem = f"model.{variant}" if variant else "model"
    if f"{stem}.safetensors" in listed:
        return location.inside(f"{stem}.safetensors")
    if variant:
        return location.inside(f"{stem}-*-of-*.safetensors")
    return location.inside(INDEX) if INDEX in listed else location


def _check_adapter(listed: Mapping[str, ObjectInfo], location: Location) -> None:
    if ADAPTER_CONFIG not in listed:
        return
    if find_spec("peft") is None:
        if CONFIG in listed:
            return  # libraries load the model without it
        raise UsageError("this is an adapter, which needs peft", uri=location.label, hint="pip install peft")
    if ADAPTER not in listed:
        raise _without(ADAPTER, listed, location, "Save the adapter again, as safetensors")


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


def _without(name: str, listed: Iterable[str], location: Location, hint: str) -> ObjectNotFoundError:
    message = f"the folder holds no {name}, but {enumerated(sorted(listed))}"
    return ObjectNotFoundError(message, uri=location.label, hint=hint)
