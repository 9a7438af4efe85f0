"""Ray as the launcher of a fleet: a cache on each node, filled by one call, and found by loads in actors and tasks.

Ray places, restarts and counts. No byte of a checkpoint travels as an object of Ray.
"""

from streamer.integrations.ray.converting import FleetConversionReport, convert
from streamer.integrations.ray.copying import FleetCopyReport, copy
from streamer.integrations.ray.loading import load, node_options
from streamer.integrations.ray.warming import FleetReport, NodeReport, stop, warm

__all__ = [
    "FleetConversionReport",
    "FleetCopyReport",
    "FleetReport",
    "NodeReport",
    "convert",
    "copy",
    "load",
    "node_options",
    "stop",
    "warm",
]
