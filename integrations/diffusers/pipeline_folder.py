"""A private folder that stands for a pipeline's folder at a URL, with a `ModelFolder` in it for each component.

``model_index.json`` names the components; each lies in a sub-folder of its name. Components that the caller passes are
ignored. Refuses, before anything is loaded: a component that does not exist, a name that no folder can have, and
everything that `ModelFolder` refuses.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from streamer.core.errors import FormatError, ObjectNotFoundError
from streamer.core.folders.private_folders import private_folder
from streamer.core.format import strict_json
from streamer.core.options.settings import resolve
from streamer.core.quoting import printable
from streamer.core.shards.small_files import folder_files, read_files
from streamer.core.store.parallel import in_parallel
from streamer.integrations.library_calls import Location
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import COMPONENT, PIPELINE, without
from streamer.integrations.small_files import write_small_files


class PipelineFolder:
    """The private folder of a pipeline, with a folder for each component; it exists until `close`."""

    def __init__(
        self,
        location: Location,
        *,
        given: Collection[str] = (),  # components that the caller passes, or does not want
        variant: str | None = None,
        needs_weights: bool = True,
        takes_code: bool = False,  # the user trusts the folder's code, which is then pulled, too
        goes_to_devices: bool = False,
    ) -> None:
        self._goes_to_devices = goes_to_devices
        self._location, self._variant, self._takes_code = location, variant, takes_code
        self._needs_weights = None if needs_weights else False
        self._folder = private_folder()
        self.path = os.path.abspath(self._folder.name)
        self.components: dict[str, ModelFolder] = {}
        try:
            names = [name for name in self._pull() if name not in given]
            in_parallel(self._pull_component, names, role="component")
        except BaseException:
            self.close()
            raise

    @property
    def labels(self) -> dict[str, str]:
        """The URL, without secrets, that the private folder stands for."""
        return {self.path: self._location.label}

    def stop(self) -> None:
        """Stop reading in the background."""
        for each in self.components.values():
            each.stop()

    def close(self) -> None:
        """Remove the folder, and end the reads of threads that still request weights."""
        for each in list(self.components.values()):  # threads that an interrupted caller left behind may add some
            each.close()
        self._folder.cleanup()

    def _pull(self) -> list[str]:
        """Pull the small files beside the components; return the names of the components."""
        location, settings = self._location, resolve(self._location.options)
        with location.store(settings) as store:
            listed = folder_files(store, (PIPELINE,))
            if PIPELINE not in listed:
                hint = "Check the name of the folder; a single component is loaded by its own class, with subfolder="
                raise without(PIPELINE, listed, location, hint)
            (content,) = read_files(store, [listed[PIPELINE]], settings)
            names = _components(content, location)
            write_small_files(self.path, store, listed, settings, takes_code=self._takes_code)
        return names

    def _pull_component(self, name: str) -> None:
        path = os.path.join(self.path, name)
        os.mkdir(path)
        location = self._location.inside(name)
        try:
            self.components[name] = ModelFolder(
                location,
                naming=COMPONENT,
                path=path,
                variant=self._variant,
                needs=None,
                needs_weights=self._needs_weights,
                takes_code=self._takes_code,
                goes_to_devices=self._goes_to_devices,
            )
        except ObjectNotFoundError as error:
            if error.uri != location.label:
                raise
            message = f"{PIPELINE} names the component {name!r}: {error.message}"
            hint = f"{error.hint}, or pass {name}= yourself"
            raise ObjectNotFoundError(message, uri=location.label, hint=hint) from error


def _components(content: bytes, location: Location) -> list[str]:
    """Return the names of the components in a ``model_index.json``, except those that are null."""
    label = location.inside(PIPELINE).label
    try:
        index: Any = strict_json.loads(strict_json.decode_utf8(content))
    except ValueError as error:
        raise FormatError(f"this is no JSON: {error}", uri=label, hint="Save the pipeline again") from error
    if not isinstance(index, dict):
        raise FormatError("this is no index of a pipeline", uri=label, hint="Save the pipeline again")
    names = [
        name
        for name, library_and_class in index.items()
        if not name.startswith("_") and isinstance(library_and_class, list) and library_and_class[:1] != [None]
    ]
    for name in names:
        if not name.isidentifier():  # component names are also argument names; so none leaves its folder
            raise FormatError(
                f"{printable(name[:80])!r} is no name of a component", uri=label, hint="Save the pipeline again"
            )
    return names
