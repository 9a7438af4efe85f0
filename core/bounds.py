"""What bounded a load, in the words that the report, the log, ``doctor`` and a trace share."""

from __future__ import annotations

from collections.abc import Mapping

# The words, by the engine's counters of time; `locating` is the time before the first byte of a tensor is read.
LOCATING, OTHER_PROCESS = "locating", "another process"
CONSUMER, WRITING = "consumer", "writing"  # a pull is the consumer of its reads
_WORDS = {
    "http_us": "store",
    "nfs_us": "store",
    "python_us": "store",
    "file_us": "disk",
    "memory_us": "memory",
    "slots_us": "device copy",
    "consumer_us": CONSUMER,
    "ranks_us": OTHER_PROCESS,
}
_ADVICE = {
    "store": "measure the storage alone: python -m streamer doctor URI; "
    'cache_dir= and share="node" read the same bytes less often',
    "disk": "measure the disk alone: python -m streamer doctor PATH; the page cache and faster disks help",
    "memory": "raise memory_limit_bytes, so that more is read at a time",
    "device copy": "raise pinned_bytes; see whether other work uses the device's bus",
    CONSUMER: "see what the program does with each tensor: py-spy shows it; streamer.load only keeps tensors",
    WRITING: "measure the disk that is written: files are flushed before they get their names",
    OTHER_PROCESS: "look at the trace or the log of the other processes: one of them is behind",
    LOCATING: "fewer files, or one folder with an index, need fewer requests before the first tensor",
}
LEAST_SHARE = 0.005  # smaller ones would show as 0 %


def bound_by(times: Mapping[str, float], *, locating_s: float = 0.0, shared_share: float = 0.0) -> dict[str, float]:
    """Return the share of each cause in the time of a load, the largest first.

    Args:
        times: The engine's counters; those of time are in microseconds.
        locating_s: Time before tensors were read.
        shared_share: The part of the bytes that other processes of this machine read.

    Example:
        >>> bound_by({"http_us": 700_000, "consumer_us": 200_000, "blocks": 3}, locating_s=0.1)
        {'store': 0.7, 'consumer': 0.2, 'locating': 0.1}
    """
    seconds: dict[str, float] = {LOCATING: locating_s}
    for counter, word in _WORDS.items():
        passed = times.get(counter, 0) / 1e6
        of_others = passed * shared_share if counter == "python_us" else 0.0
        seconds[word] = seconds.get(word, 0.0) + passed - of_others
        seconds[OTHER_PROCESS] = seconds.get(OTHER_PROCESS, 0.0) + of_others
    total = sum(seconds.values())
    shares = {word: round(each / total, 3) for word, each in seconds.items() if total and each / total >= LEAST_SHARE}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def bounds_text(shares: Mapping[str, float]) -> str:
    """Return one line.

    Example:
        >>> bounds_text({"store": 0.71, "consumer": 0.2})
        'store 71 %, consumer 20 %'
    """
    return ", ".join(f"{word} {share * 100:.0f} %" for word, share in shares.items())


def advice_on(shares: Mapping[str, float], *, is_limited: bool = False) -> str:
    """Return what would help most; `is_limited`: the caller limits the bytes per second."""
    first = next(iter(shares), "")
    if is_limited and first in ("store", "disk"):
        return "max_bytes_per_second limits this load: raise it"
    return _ADVICE.get(first, "")
