"""What a load did, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streamer.core.outages.meter import OutageMeter
from streamer.core.quoting import printable
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource, Source

__all__ = ["LoadReport", "ObjectCheck", "joined_reports", "load_report"]

_READERS: dict[type[Source], str] = {
    FileSource: "file",
    HttpSource: "http",
    NfsSource: "nfs",
    PythonSource: "python",
}
# Fields with the names of the engine's counters; fields that a second read adds to; fields of which the larger counts.
_COUNTERS = ("retries", "rereads", "hedges", "credential_refreshes", "peak_held_bytes", "peak_pinned_bytes")
_SUMMED = ("bytes_read", "requests", "retries", "outages", "waited_s", "probes", "hedges", "credential_refreshes")
_HIGHEST = ("peak_held_bytes", "peak_pinned_bytes")


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
        bytes_read: Bytes requested from the storage for them, dropped gaps included, headers not.
        seconds: From the call to the last tensor.
        requests: Ranged GETs sent, retries included; 0 where no HTTP was spoken.
        retries: Blocks that were retried.
        outages: Times a server failed as a whole, or throttled, and was waited for.
        waited_s: Seconds during which a server was waited for, all servers together.
        probes: Requests sent meanwhile to find out whether it answers again.
        rereads: Tensors read a second time because their digest, or that of their object, was wrong the first time.
        hedges: Duplicate requests sent against slow ones.
        credential_refreshes: Times an expiring signature was renewed.
        peak_held_bytes: Most bytes read, or being read, and not yet handed over.
        device_path: How tensors got to their accelerator: ``"ring"`` through the engine's pinned memory, ``"torch"``
            by a copy of torch's after each arrived, ``"gpudirect"`` straight from the disk; ``"ring+torch"`` and such
            where there were several, ``""`` where all tensors stayed in this machine's memory.
        peak_pinned_bytes: Most page-locked host memory this load used at a time, all devices together.
        readers: Shards by the reader that read them: ``file``, ``http`` and ``nfs`` are native, ``python`` is not.
        remarks: Why a shard was read more slowly than its storage usually is, which shards are missing, as
            ``allow_missing_shards`` permits, which tensors of a target stay on the meta device, and which code of a
            module was not run; usually empty.
        missing: Names of targets of `load_into` for which the checkpoint has no tensor, with ``strict=False``.
        unexpected: Names of tensors in the checkpoint for which `load_into` has no target, with ``strict=False``.
        verified: With ``verify=``, for each shard what was verified or why nothing was; empty without it.
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
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
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
        lists = {name: list(plain[name]) for name in ("remarks", "missing", "unexpected", "verified")}
        return {**plain, **lists, "gb_per_s": self.gb_per_s}

    def __str__(self) -> str:
        rate = f"{self.bytes / 1e9:.3f} GB in {self.seconds:.2f} s, {self.gb_per_s:.2f} GB/s"
        asked = f", {self.requests} requests, {self.retries} retries" if self.requests else ""
        count = f"{self.outages} outage{'' if self.outages == 1 else 's'}"
        waited = f", {self.waited_s:.1f} s of it in {count}" if self.outages else ""
        alone = "".join(
            f", {len(names)} {what}"
            for names, what in ((self.missing, "missing"), (self.unexpected, "unexpected"))
            if names
        )
        return f"{printable(self.uri)}: {self.tensors} tensors, {rate}{asked}{waited}{alone}"


def load_report(
    uri: str,
    stats: Mapping[str, int],
    before: OutageMeter,
    *,
    stages: Mapping[str, float],
    bytes_read: int,
    sources: Sequence[Source],
    remarks: Sequence[str],
    verified: tuple[ObjectCheck, ...],
    device_path: str,
    is_complete: bool,
) -> LoadReport:
    """Assemble the report of a load; all but these as `LoadReport` has it.

    Args:
        uri: What was loaded.
        stats: The engine's counters.
        before: The waits before the engine began.
        stages: Seconds by stage.
        bytes_read: As planned.
        sources: Of the shards that were read.
        remarks: On devices; those of the sources come first.
        verified: By shard.
        device_path: As `device_path` of the module of this name gives it.
        is_complete: Every tensor was handed out.
    """
    same: dict[str, Any] = {name: stats[name] for name in _COUNTERS}
    return LoadReport(
        uri=uri,
        tensors=stats["items_delivered"],
        bytes=stats["bytes_delivered"],
        bytes_read=bytes_read,
        seconds=sum(stages.values()),
        requests=stats["http_requests"],
        outages=stats["outages"] + before.outages,
        waited_s=stats["waited_us"] / 1e6 + before.waited_s,
        probes=stats["probes"] + before.probes,
        **same,
        readers=dict(Counter(_READERS[type(source)] for source in sources)),
        remarks=(*_remarks_of(sources), *remarks),
        verified=verified,
        device_path=device_path,
        stages=stages,
        is_complete=is_complete,
    )


def joined_reports(first: LoadReport, second: LoadReport, read_again: Collection[int]) -> LoadReport:
    """Make one report of a load whose shards `read_again` were read a second time, all of their tensors."""
    summed = {name: getattr(first, name) + getattr(second, name) for name in _SUMMED}
    highest = {name: max(getattr(first, name), getattr(second, name)) for name in _HIGHEST}
    checks = zip(first.verified, second.verified, strict=True)
    return replace(
        first,
        **summed,
        **highest,
        seconds=first.seconds + second.stages["read"],
        rereads=first.rereads + second.tensors,
        verified=tuple(now if shard in read_again else then for shard, (then, now) in enumerate(checks)),
        stages={**first.stages, "read": first.stages["read"] + second.stages["read"]},
        is_complete=first.is_complete and second.is_complete,
    )


def _remarks_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Collect the remarks of the sources, each once."""
    remarks = [source.remark for source in sources if isinstance(source, PythonSource) and source.remark]
    return tuple(dict.fromkeys(remarks))
