"""A private folder with an empty file that stands for one ``.safetensors`` file at a URL."""

from __future__ import annotations

import os
from typing import Any

from streamer.core.errors import OptionError
from streamer.core.folders.private_folders import private_folder
from streamer.integrations.folder_weights import FolderWeights
from streamer.integrations.library_calls import Location

__all__ = ["SingleFile"]


class SingleFile:
    """The folder; it exists until `close`.

    Args:
        location: The location of the file.

    Attributes:
        path: The absolute path of the folder.
        file_path: The path of the file in it.
        shards: The name of the file, as a list.

    Raises:
        OptionError: the file has another suffix.
        StreamerError: as `streamer.load`.
    """

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
