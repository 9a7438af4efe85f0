"""A checkpoint that ``dcp.save`` wrote: its ``.metadata`` has the file and the offset of each item."""

from __future__ import annotations

from collections.abc import Mapping

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan

from streamer.core.checkpoint.report import LoadReport
from streamer.core.checkpoint.shards import source_object
from streamer.core.engine.session import SourceObject
from streamer.core.errors import ObjectNotFoundError
from streamer.core.format.dcp_metadata import DcpMetadata
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.store.names import path_in
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store
from streamer.integrations.dcp.destination import Destination
from streamer.integrations.dcp.object_reads import Objects
from streamer.integrations.dcp.saved_items import grouped, read_items
from streamer.integrations.dcp.torch_metadata import metadata_of_dcp
from streamer.integrations.library_calls import Location

__all__ = ["SavedCheckpoint"]


class SavedCheckpoint:
    """The checkpoint."""

    def __init__(self, saved: DcpMetadata, listed: Mapping[str, ObjectInfo], label: str) -> None:
        self._saved, self._listed, self._label = saved, listed, label

    def metadata(self, load_id: str) -> Metadata:
        """Return the metadata in torch's classes."""
        return metadata_of_dcp(self._saved, load_id, self._label)

    def read(self, plan: LoadPlan, destination: Destination, location: Location, settings: Settings) -> LoadReport:
        """Read the items of a plan."""
        wanted = grouped(plan.items, self._saved, self._label)
        paths = sorted({saved.path for saved in wanted})
        with location.store(settings) as store:
            objects = in_parallel(lambda path: self._object(store, path), paths, role="source")
        where = Objects(self._label, objects, settings)
        return read_items(wanted, self._saved, {path: number for number, path in enumerate(paths)}, where, destination)

    def _object(self, store: Store, path: str) -> SourceObject:
        info = self._listed.get(path)
        root = store.root.rstrip("/")
        try:
            if info is None or info.size_bytes is None:
                info = store.info(path_in(root, path))
            return source_object(store, info)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"the metadata name the file {quoted(path)}, which does not exist",
                uri=self._label,
                hint="Upload the whole folder, or save the checkpoint again",
            ) from error
