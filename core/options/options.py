"""All options in one frozen value, each with its default, bounds, unit and reason.

Options in bytes may be text with a unit (`streamer.core.options.switches_and_sizes`), here and in the environment.
`None` means automatic. Precedence: the argument, then ``STREAMER_<NAME>`` in the environment, then automatic.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any

from streamer.core.errors import OptionError
from streamer.core.options.switches_and_sizes import parsed_bytes
from streamer.core.secrets.environment import variable

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40


def _switch(reason: str) -> Any:
    return field(default=None, metadata={"reason": reason})


def _path(kind: str, reason: str) -> Any:
    return field(default=None, metadata={"path": kind, "reason": reason})


def _addresses(reason: str) -> Any:
    return field(default=None, metadata={"kinds": ("dns:", "tcpstore://", "ray"), "reason": reason})


def _choice(*words: str, reason: str) -> Any:
    return field(default=None, metadata={"words": words, "reason": reason})


def _knob(low: float, high: float, unit: str, reason: str, default: float | None = None) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "unit": unit, "reason": reason})


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to read. All fields are optional; unset ones are chosen for the machine and the storage.

    Those in bytes also take text: ``"512MiB"``, ``"1GB"`` (10^9), or for a speed ``"100MB/s"``.

    Attributes:
        block_bytes: Size of one read or one range request. Automatic: 8 MiB from files, 4 MiB over NFS; over HTTP from
            1 MiB up to 8, while larger requests increase the throughput.
        file_threads: Threads that read mounted files. Automatic: processors + 1, at most 32, if the files are in the
            page cache, else 16 or more; 32 if the file system is on another machine. For CUDA devices, four processors
            are left to other work: processors - 4, at least 5 and at most 16 for each device. Here and below, a
            container's CPU quota limits the number of processors, and loads that share a machine divide what they use.
        direct_io: Bypass the page cache for mounted files (``O_DIRECT``), if their file system supports it. Automatic:
            for bytes that are not in the page cache, unless only a small part is wanted or missing, the file system
            needs the page cache (NFS, FUSE, Lustre, …), or other loads of this machine read the file at the same time.
        io_uring: Keep four direct reads in flight per thread if the system has io_uring and allows it, otherwise one.
            Automatic: yes.
        http_reactors: Event loops for HTTP, one thread each. Automatic: one per processor, at most 64; at most 4 for
            loads of less than some gigabytes.
        http_in_flight: Maximum number of range requests in flight per reactor. A reactor starts with 4, or with 16 if
            answers take long to begin, and doubles this while it has to wait. Automatic: 64, and 1024 for all reactors.
        nfs_threads: Threads that read ``nfs://`` without a mount, each with its own connection. Automatic: 4, up to 16
            for loads of several gigabytes.
        python_threads: Threads that call ``read_into`` of a `PythonSource`. Automatic: 8, up to 16 for loads of several
            gigabytes.
        memory_limit_bytes: Maximum number of bytes that are read or being read, and not yet passed to the consumer. A
            larger tensor is read alone. Automatic: 2 GiB, or 64 MiB for each processor if that is more; at most an
            eighth of the memory, and half of what is free when the load begins; at least 64 MiB.
        max_bytes_per_second: Maximum number of bytes that one load reads in a second, on average, from storages of all
            kinds, for the sake of others on the same network or disk; from 64 KiB/s on. Nothing waits after the last
            block, so a load of a second or two is some percent faster than the limit. Files that are mapped into memory
            have no limit. Automatic: no limit.
        check_memory: Before a byte is read, refuse a load that does not fit in the memory still available to this
            process, container limits included; otherwise the kernel would kill the process. Automatic: yes.
        pinned_bytes: Maximum pinned (page-locked) host memory that one load uses for one CUDA device. It stays pinned
            for the next load until `streamer.release`. Automatic: for local files 256 MiB, divided among the devices
            and the loads that share a machine, and at least 64 MiB; over a network a sixty-fourth of the memory, at
            least 256 MiB and at most 2 GiB.
        gpudirect: Let NVIDIA's GPUDirect Storage read local files that are not in the page cache directly to a CUDA
            device, if its kernel module (nvidia-fs) and library are available; otherwise use the pinned ring.
            Automatic: for loads of 4 GiB and more, and only if the library itself makes no copy.
        coalesce_gap_bytes: A gap of up to this many unwanted bytes between two wanted tensors is read and dropped, so
            that both tensors need only one request.
        answer_bytes: Largest response that holds no tensors: a page of a listing, a document of the Hub, the body of
            an error. A larger one is refused.
        listing_entries: Maximum number of entries of one folder, including sub-folders; for a web server's index page,
            of links.
        listing_empty_pages: Maximum number of pages without an entry in one listing; stores send some if many objects
            were deleted.
        header_bytes: Largest first read of a shard, which usually contains the whole header; of a small shard, a
            64th is read, and at least 16 KiB.
        max_attempts: Attempts at one block before the load fails. Attempts during an outage of the server do not count.
            If the server fails a large share of all requests at random, a block has more attempts, but 1 always means
            one attempt.
        block_deadline_s: Longest time from the first attempt at a block to its last byte. A load waits for a server
            that is down until the first waiting block runs out of time.
        hedge_percent: Maximum number of extra bytes, in percent, for duplicates of requests that are slower than 95 of
            100 requests, or than three times the median. The first complete response counts. 0 turns duplicates off.
        deadline_s: Longest time from the call to the last tensor, including the search for the checkpoint and the
            consumer's own time. For an open `Checkpoint`, it applies to each read. Automatic: none.
        connect_timeout_s: Longest wait for a connection, TLS handshake included.
        first_byte_timeout_s: Longest wait from a request to the first byte of its response. During the search for the
            checkpoint, the response headers must be complete within the sum of both time-outs, retries included.
        stall_timeout_s: Longest time a transfer may stay below `stall_bytes_per_s` before it is retried.
        stall_bytes_per_s: Speed below which a transfer has stalled. If all transfers together reach this speed, the
            network may be slow, not the server: the limit is then at most a quarter of a transfer's fair share.
        max_rank: Maximum number of dimensions a tensor may have.
        cache_dir: Path of a folder on a disk of this machine, which keeps what is read from object stores, web servers
            and ``nfs://`` for the next load, of this process or another. ``""`` means no cache, even if the environment
            names one. Automatic: none.
        cache_bytes: Maximum number of bytes in that folder; checkpoints that were not used for the longest time are
            removed. Automatic: half of the sum of the folder's size and the free space of the disk.
        allow_missing_shards: Load a folder without an index even if some of its numbered shards
            (``model-00001-of-00004.safetensors``) are missing; the log and the report name them. Automatic: no.
        trace: Path of a file to which loads, saves and copies write what they did and when, for Perfetto and
            ``python -m streamer trace``; processes of this machine may write to one file (docs/traces.md). ``""``
            means no trace, even if the environment names a file. Automatic: none.
        peers: Other machines whose caches may have the bytes: a list of ``host:port``; ``"dns:NAME:PORT"`` for all
            addresses of a name, as of a headless service; ``"tcpstore://HOST:PORT"`` for those that have announced
            themselves in a ``torch.distributed.TCPStore``; or ``"ray"`` for the actors of `streamer.ray.warm`. They are
            asked before the storage, and this process serves its own cache to them (on Ray, the actors do); both need
            `cache_dir`, and a token (docs/fleet.md). In the environment, a list has commas. ``""`` means none, even if
            the environment names some. Automatic: none.
        max_serving_bytes_per_second: Maximum number of bytes that this process sends to its peers in a second, for the
            sake of others on the same network. Automatic: no limit.
        prefer: What a load with peers goes by. ``"speed"``: peers give what they hold, and so does the storage where
            it is faster. ``"egress"``: the storage gives only what no peer gives. Automatic: ``"speed"``.
        share: ``"node"``: processes of this user on this machine that load the same checkpoint from a network at the
            same time read each byte once between them. ``"off"``: each process reads for itself. Automatic: ``"node"``
            in processes that were launched together (torchrun, vLLM, SGLang, MPI), for loads of 64 MiB and more.

    Raises:
        OptionError: an option is unknown, or its value is out of bounds.

    Example:
        >>> Options(http_in_flight=16).http_in_flight
        16
    """

    block_bytes: int | None = _knob(64 * KIB, GIB, "bytes", "smaller: per-request cost dominates; larger: uneven load")
    file_threads: int | None = _knob(1, 256, "threads", "beyond the device's queue depth, only switches")
    direct_io: bool | None = _switch("saves a copy and evicts nothing from memory; the next load reads again")
    io_uring: bool | None = _switch("more reads in flight without more threads")
    http_reactors: int | None = _knob(1, 64, "threads", "one saturates one processor at 2-4 GB/s")
    http_in_flight: int | None = _knob(1, 256, "requests", "bandwidth x latency / block size, S3 gives 90 MB/s each")
    nfs_threads: int | None = _knob(1, 64, "threads", "a server limits the bandwidth of one connection")
    python_threads: int | None = _knob(1, 256, "threads", "the file system's own concurrency")
    memory_limit_bytes: int | None = _knob(1, 16 * TIB, "bytes", "what the engine may hold for a slow consumer")
    max_bytes_per_second: int | None = _knob(64 * KIB, TIB, "bytes/s", "only the user knows the neighbours")
    check_memory: bool | None = _switch("a caller may free memory during the load")
    pinned_bytes: int | None = _knob(MIB, 64 * GIB, "bytes", "what is in flight: bandwidth x the time of a request")
    gpudirect: bool | None = _switch("saves memory bandwidth, costs a registration of each file")
    coalesce_gap_bytes: int = _knob(0, GIB, "bytes", "a request costs about as much as 512 KiB", 512 * KIB)
    answer_bytes: int = _knob(64 * KIB, GIB, "bytes", "a page of 5000 blobs with metadata has 40 MB", 64 * MIB)
    listing_entries: int = _knob(1, 10**7, "entries", "the largest checkpoints have a few thousand files", 100_000)
    listing_empty_pages: int = _knob(0, 10**6, "pages", "S3 skips 1000 deleted objects on each", 1000)
    header_bytes: int = _knob(8, 128 * MIB, "bytes", "holds the header of nearly every shard", 256 * KIB)
    max_attempts: int = _knob(1, 100, "attempts", "a healthy server seldom fails the same request twice", 8)
    block_deadline_s: float = _knob(0.01, 86400, "s", "outlasts the restart of a server", 120.0)
    hedge_percent: float = _knob(0, 100, "percent", "the slowest twentieth of all requests", 5.0)
    deadline_s: float | None = _knob(0.01, 1e7, "s", "only the caller knows how long is too long")
    connect_timeout_s: float = _knob(0.01, 3600, "s", "three SYN retransmissions", 10.0)
    first_byte_timeout_s: float = _knob(0.01, 3600, "s", "object stores respond within 1 s, throttled ones later", 30.0)
    stall_timeout_s: float = _knob(0.01, 3600, "s", "longer than a TCP retransmission storm", 10.0)
    stall_bytes_per_s: float = _knob(1, GIB, "bytes/s", "a hundredth of a store's speed per connection", 256 * KIB)
    max_rank: int = _knob(1, 64, "dimensions", "numpy's own limit", 64)
    cache_dir: str | os.PathLike[str] | None = _path("folder", "only the user knows a disk with room")  # noqa: RUF009 (as the others)
    cache_bytes: int | None = _knob(MIB, 1024 * TIB, "bytes", "the disk has other users")
    allow_missing_shards: bool | None = _switch("a model without all its weights is wrong")
    trace: str | os.PathLike[str] | None = _path("file", "it takes up to a fiftieth of the time")  # noqa: RUF009 (as the others)
    peers: str | Sequence[str] | None = _addresses("only the user knows which machines load the same")
    max_serving_bytes_per_second: int | None = _knob(64 * KIB, TIB, "bytes/s", "only the user knows the neighbours")
    prefer: str | None = _choice("speed", "egress", reason="only the user knows what bytes of the storage cost")
    share: str | None = _choice("node", "off", reason="only the user knows which processes load the same checkpoint")

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if isinstance(value, str) and _is_in_bytes(knob.metadata):
                value = _bytes(knob.name, value)
                object.__setattr__(self, knob.name, value)
            if kind := knob.metadata.get("path"):
                object.__setattr__(self, knob.name, _path_of(kind, knob.name, value))
            elif kinds := knob.metadata.get("kinds"):
                object.__setattr__(self, knob.name, _addresses_of(kinds, knob.name, value))
            elif value is not None and "low" in knob.metadata:
                _check_bounds(knob.name, value, knob.metadata)
            elif value is None and knob.default is not None:
                raise OptionError(f"{knob.name} must be a number of {knob.metadata['unit']}, not None")
            elif value is not None and "words" in knob.metadata:
                _check_word(knob.name, value, knob.metadata)
            elif value is not None and not isinstance(value, bool):
                raise OptionError(f"{knob.name} must be True, False or None, not {value!r}")

    def filled_from_environment(self, environment: Mapping[str, str] | None = None) -> Options:
        """Use ``STREAMER_<NAME>`` for every field still at its default.

        Raises:
            OptionError: a variable is not a number, or out of its bounds; a switch is neither 0 nor 1.
        """
        values: dict[str, Any] = {}
        for knob in fields(self):
            text = variable(f"STREAMER_{knob.name.upper()}", environment)
            if text and getattr(self, knob.name) == knob.default:
                values[knob.name] = _of_environment(knob.name, text, knob.metadata)
        return replace(self, **values)


def check_names(given: Iterable[str], names: Sequence[str]) -> None:
    """Raise an error that has the nearest names, if a given name is none of those that there are."""
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names)
            hint = f"Near: {', '.join(near)}" if near else f"There are {', '.join(names)}"
            raise OptionError(f"there is no option {name[:80]!r}", hint=hint)


def _with_near_names(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor that `dataclass` writes: for an unknown name it raises a TypeError without a hint."""
    names = [knob.name for knob in fields(Options)]

    @wraps(constructor)
    def checked_constructor(self: Options, *arguments: object, **named: Any) -> None:
        if arguments:
            raise OptionError("options are given by name", hint=f"For instance Options({names[0]}=…)")
        check_names(named, names)
        constructor(self, **named)

    return checked_constructor


Options.__init__ = _with_near_names(Options.__init__)  # type: ignore[method-assign]


def _check_bounds(name: str, value: object, metadata: Mapping[str, Any], source: str | None = None) -> None:
    source = source or name
    low, high, unit = metadata["low"], metadata["high"], metadata["unit"]
    whole = not _is_fractional(name)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise OptionError(f"{source} must be {'a whole number' if whole else 'a number'} of {unit}, not {value!r}")
    if not low <= value <= high:
        raise OptionError(f"{source} must be between {low} and {high} {unit}, not {value!r}")


def _check_word(source: str, value: object, metadata: Mapping[str, Any]) -> None:
    if value not in metadata["words"]:
        words = " or ".join(f'"{word}"' for word in metadata["words"])
        raise OptionError(f"{source} must be {words}, not {str(value)[:80]!r}")


def _of_environment(name: str, text: str, metadata: Mapping[str, Any]) -> float | bool | str | tuple[str, ...] | None:
    source = f"STREAMER_{name.upper()}"
    if "path" in metadata:
        return _path_of(metadata["path"], source, text) or ""
    if "words" in metadata:
        _check_word(source, text, metadata)
        return text
    if "kinds" in metadata:
        return _addresses_of(metadata["kinds"], source, text)
    if "low" not in metadata:
        return _truth(name, text)
    value = _bytes(source, text) if _is_in_bytes(metadata) else _number(name, text)
    _check_bounds(name, value, metadata, source)
    return value


def _path_of(kind: str, name: str, value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or "\0" in path:
        raise OptionError(f"{name} must be the path of a {kind}, not {value!r}", hint='"" turns it off')
    if "://" in path:
        raise OptionError(f"{name} must be a {kind} of this machine, not a URL", hint="Give a path, as /var/cache/x")
    return path


def _addresses_of(kinds: Sequence[str], name: str, value: Any) -> str | tuple[str, ...] | None:
    prefixes = tuple(each for each in kinds if each.endswith((":", "/")))
    if value is None or value == "" or (isinstance(value, str) and (value in kinds or value.startswith(prefixes))):
        return None if value is None else str(value)
    hint = f"Give a list of host:port, or {' or '.join(f'{each}…' if each in prefixes else each for each in kinds)}"
    listed = [each for each in value.split(",") if each.strip()] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(
        isinstance(each, str) and ":" in each for each in listed or [0]
    ):
        raise OptionError(f"{name} must be addresses, not {str(value)[:80]!r}", hint=hint)
    return tuple(each.strip() for each in listed)


def _is_in_bytes(metadata: Mapping[str, Any]) -> bool:
    return str(metadata.get("unit", "")).startswith("bytes")


def _bytes(source: str, text: str) -> int:
    size_bytes = parsed_bytes(text)
    if size_bytes is None:
        hint = "Write a number, or one with a unit: 512MiB, 1GB"
        raise OptionError(f"{source} is not a number of bytes: {text[:80]!r}", hint=hint)
    return size_bytes


def _number(name: str, text: str) -> float | int:
    try:
        return float(text) if _is_fractional(name) else int(text)
    except ValueError:
        raise OptionError(f"STREAMER_{name.upper()} is not a number: {text!r}") from None


def _truth(name: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise OptionError(f"STREAMER_{name.upper()} is 0 or 1, not {text!r}")
    return text == "1"


def _is_fractional(name: str) -> bool:
    return name.endswith(("_s", "_percent"))
