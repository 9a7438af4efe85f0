"""What a load did, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from streamer.core.quoting import printable
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource, Source

__all__ = ["LoadReport", "ObjectCheck", "count_readers", "remarks_of"]

_READERS: dict[type[Source], str] = {
    FileSource: "file",
    HttpSource: "http",
    NfsSource: "nfs",
    PythonSource: "python",
}


@dataclass(frozen=True)
class ObjectCheck:
    """Whether the bytes of one object were compared with a digest of them.

    Attributes:
        uri: The object, without secrets.
        verified_by: What was compared and equal (``"manifest (crc32c)"``, ``"crc64nvme"``, ``"sha256"``;
            ``"crc64nvme of each answer"``: of all that was read, as the server sent it), or None.
        remark: Why nothing was compared; None where it was.
    """

    uri: str
    verified_by: str | None
    remark: str | None


@dataclass(frozen=True)
class LoadReport:
    """Measured by the load itself.

    Attributes:
        uri: What was loaded, without secrets.
        tensors: Tensors delivered.
        bytes: Bytes of these tensors.
        bytes_read: Bytes asked of the storage for them, dropped gaps included, headers not.
        seconds: From the call to the last tensor.
        requests: Ranged GETs sent, retries included; 0 where no HTTP was spoken.
        retries: Blocks that were tried again.
        outages: Times a server failed as a whole, or asked for patience, and was waited for.
        waited_s: Seconds during which a server was waited for, all servers together.
        probes: Requests sent meanwhile to see whether it is back.
        rereads: Tensors read a second time because their digest, or that of their object, was wrong the first time.
        hedges: Duplicate requests sent against slow ones.
        credential_refreshes: Times an expiring signature was renewed.
        peak_held_bytes: Most bytes read, or being read, and not yet handed over.
        device_path: How tensors got to their accelerator: ``"ring"`` through the engine's pinned memory, ``"torch"``
            by a copy of torch's after each arrived, ``"gpudirect"`` straight from the disk; ``"ring+torch"`` and such
            where several were taken, ``""`` where nothing left this machine's memory.
        peak_pinned_bytes: Most page-locked host memory this load used at a time, all devices together.
        readers: Shards by the reader that read them: ``file``, ``http`` and ``nfs`` are native, ``python`` is not.
        remarks: Why some shard was read in a slower way than its storage usually is; usually empty.
        verified: With ``verify=``, of each shard what was verified or why not; empty without it.
        stages: Seconds spent in ``locate`` (listing), ``headers`` and ``read``.
        is_complete: Every tensor asked for was delivered.
    """

    uri: str
    tensors: int = 0
    bytes: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    outages: int = 0
    waited_s: float = 0.0
    probes: int = 0
    rereads: int = 0
    hedges: int = 0
    credential_refreshes: int = 0
    peak_held_bytes: int = 0
    device_path: str = ""
    peak_pinned_bytes: int = 0
    readers: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    verified: tuple[ObjectCheck, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def is_verified(self) -> bool:
        """Whether the bytes of every shard were compared with a digest of them."""
        return bool(self.verified) and all(each.verified_by for each in self.verified)

    @property
    def gb_per_s(self) -> float:
        """Bytes delivered per second of the whole call, in GB (10^9) per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Give all fields, and ``gb_per_s``, as plain values for JSON."""
        plain = asdict(self)
        return {**plain, "remarks": list(self.remarks), "verified": list(plain["verified"]), "gb_per_s": self.gb_per_s}

    def __str__(self) -> str:
        rate = f"{self.bytes / 1e9:.3f} GB in {self.seconds:.2f} s, {self.gb_per_s:.2f} GB/s"
        asked = f", {self.requests} requests, {self.retries} retries" if self.requests else ""
        count = f"{self.outages} outage{'' if self.outages == 1 else 's'}"
        waited = f", {self.waited_s:.1f} s of it in {count}" if self.outages else ""
        return f"{printable(self.uri)}: {self.tensors} tensors, {rate}{asked}{waited}"


def count_readers(sources: Iterable[Source]) -> dict[str, int]:
    """Count objects by the reader that reads them, as `LoadReport.readers` tells."""
    return dict(Counter(_READERS[type(source)] for source in sources))


def remarks_of(sources: Iterable[Source]) -> tuple[str, ...]:
    """Collect what the sources have to say, each remark once."""
    remarks = [source.remark for source in sources if isinstance(source, PythonSource) and source.remark]
    return tuple(dict.fromkeys(remarks))
