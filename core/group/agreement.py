"""What the ranks of a group agree on before data is read: the request, the checkpoint, and what each rank wants.

Rank 0 decides. It alone looks up the checkpoint and reads its headers, and tells the others what it found. A request
that differs from its own is an error on all ranks, which names the difference; a rank that finds other versions than
rank 0 gets a `ChangedError`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.parallel_plans import Placements, TensorParallel
from streamer.core.errors import ChangedError, GroupError, UsageError
from streamer.core.findings import Findings
from streamer.core.group.assembly import Part, Runs, part_of
from streamer.core.group.member import MOST_SHOWN, SILENCE_S, Member
from streamer.core.load_status import machine
from streamer.core.options.arguments import chosen_verification, is_group
from streamer.core.options.options import Options
from streamer.core.options.settings import Settings
from streamer.core.request.request import Request
from streamer.core.secrets.redact import redact
from streamer.core.store.identities import digest_of, stable_url
from streamer.core.store.names import scheme_of

MOST_WINDOW_BYTES = 128 << 20
LEAST_WINDOW_BYTES = 4 << 20  # smaller windows cost more time in rounds than the overlap saves
WINDOWS_IN_LIMIT = 16  # two are held to be sent, two as received, and the rest is read ahead
STRICT = "One load or save at a time may use a group, and all of its ranks call it alike"


_busy: list[Any] = []  # groups of this process's saves that run, and of loads that begin
_lock = threading.Lock()


@contextmanager
def _alone(group: Any) -> Iterator[None]:
    """Refuse a second call with a group: gloo ends the process if messages of two calls meet."""
    with _lock:
        if any(each is group for each in _busy):
            hint = "Wait until it ends, or make a group for each: torch.distributed.new_group()"
            raise UsageError("another load or save of this process uses the group", hint=hint)
        _busy.append(group)
    try:
        yield
    finally:
        with _lock:
            _busy[:] = [each for each in _busy if each is not group]


@contextmanager
def joined(request: Request, call: str) -> Iterator[Member | None]:
    """Join the load of the request's group; see `joined_group`. A group of one rank is none."""
    member = Member(request.group)
    if member.size == 1:
        yield None
        return
    with _alone(request.group), _joined(member, request, call):
        yield member


@contextmanager
def _joined(member: Member, request: Request, call: str) -> Iterator[None]:
    try:
        options = (request.options or Options()).filled_from_environment()
        member.silence_s = SILENCE_S - Options().block_deadline_s + options.block_deadline_s
        if chosen_verification(request.verify) == "auto":
            hint = 'Pass verify="manifest" or "off", or load without group='
            raise UsageError('verify="auto" compares whole objects, of which each rank reads only a part', hint=hint)
        _compare_requests(member, request, call)
        yield
    except BaseException as error:
        member.fail(error)
        raise


@contextmanager
def reporting(group: Any) -> Iterator[None]:
    """Report an error in the block to the other ranks; see `reporting_to_group`."""
    try:
        yield
    except BaseException as error:
        if is_group(group) and not any(each is group for each in _busy):
            Member(group).fail(error)
        raise


class _Opened(Protocol):
    @property
    def catalog(self) -> Catalog: ...


Checkpoint = TypeVar("Checkpoint", bound=_Opened)


def opened_together(
    member: Member, request: Request, settings: Settings, opened: Callable[[Settings], Checkpoint]
) -> Checkpoint:
    """Open the checkpoint on rank 0, tell the other ranks what it found, and open it there without further lookups.

    Each rank opens its stores with its own credentials, which sign its own requests. Files that are mounted or local
    are looked up by each rank, because each machine may have others under the same path.
    """
    member.deadline, member.watchers = settings.deadline, settings.watchers
    if request.fs is None and all(scheme_of(each) == "file" for each in request.uris):
        checkpoint = opened(settings)
    elif member.rank == 0:
        findings = Findings()
        checkpoint = opened(replace(settings, findings=findings))
        member.gather_bytes(findings.packed())
        findings.end()
    else:
        member.awaited = [0]
        findings = Findings(member.gather_bytes(b"")[0])
        checkpoint = opened(replace(settings, findings=findings))
        findings.end()
    _agree_on_checkpoint(member, checkpoint.catalog)
    return checkpoint


def _agree_on_checkpoint(member: Member, catalog: Catalog) -> None:
    """Compare the objects that this rank located, and their headers, with those of rank 0."""
    digest = hashlib.sha256(repr(catalog.tensors).encode()).hexdigest()
    versions = [[each.size_bytes, each.version_for_all] for each in catalog.shards]
    told = member.gather({"versions": versions, "tensors": digest})
    different = [rank for rank in range(member.size) if told[rank] != told[0]]
    if member.rank in different:
        member.is_over = True  # each rank finds this difference by itself
        expected: list[Any] = told[0]["versions"]
        number = next((i for i, mine in enumerate(versions) if mine not in expected), 0)
        raise ChangedError(
            f"rank {member.rank} of the group found another version or size than rank 0",
            uri=catalog.shards[number].uri,
            hint="Load again when nobody writes. For files that were copied to each machine, make a group per machine",
        )
    if different:
        member.is_over = True
        name = member.name_of(different[0])
        raise GroupError(f"{name} found another version of the checkpoint than rank 0", rank=different[0])
    _compare_identities(member, catalog)


def _compare_identities(member: Member, catalog: Catalog) -> None:
    """Check that all ranks read the same objects: other objects may have equal sizes and versions."""
    told = member.gather({"identities": [each.identity for each in catalog.shards]})
    for rank, each in enumerate(told):
        if each != told[0]:
            member.is_over = True  # each rank finds this difference by itself
            raise UsageError(
                f"rank {rank} of the group reads other objects than rank 0: by login, headers, endpoint, proxy or "
                "redirect",
                uri=catalog.shards[0].uri,
                hint="Pass all ranks the same, also in the environment, or let each rank load alone: group=None",
            )


def agree_on_parts(
    member: Member, catalog: Catalog, wanted: Sequence[ShardTensor], settings: Settings
) -> tuple[list[ShardTensor], list[list[Part]], int]:
    """Exchange what each rank wants.

    Returns:
        The whole tensors that any rank wants, in file order; by rank and by number in that list, the part that the rank
        keeps, empty if it does not want the tensor; and the bytes of a window.
    """
    names = [each.entry.name for each in wanted]
    mine = [part_of(each, catalog.tensors[name].entry.begin) for name, each in zip(names, wanted, strict=True)]
    is_whole = all(each == catalog.tensors[each.entry.name] for each in wanted)
    told = member.gather(
        {
            "names": None if len(names) == len(catalog.tensors) else names,
            "parts": None if is_whole else mine,
            "limit": settings.memory_limit_bytes,
        }
    )
    wants = [list(catalog.tensors) if each["names"] is None else each["names"] for each in told]
    tensors = list(catalog.in_file_order({name for names in wants for name in names}))
    whole = {each.entry.name: part_of(each, each.entry.begin) for each in tensors}
    parts = []
    for names, each in zip(wants, told, strict=True):
        kept = whole if each["parts"] is None else dict(zip(names, map(_part, each["parts"]), strict=True))
        wanted_names = {*names}
        parts.append([kept[name] if name in wanted_names else () for name in whole])
    window_bytes = min(MOST_WINDOW_BYTES, min(each["limit"] for each in told) // WINDOWS_IN_LIMIT)
    return tensors, parts, max(LEAST_WINDOW_BYTES, window_bytes)


def _part(runs: Sequence[Sequence[int]]) -> Part:
    return tuple(Runs(*each) for each in runs)


def _compare_requests(member: Member, request: Request, call: str) -> None:
    uris, process = digest_of(*map(stable_url, request.uris)), [machine(), os.getpid()]
    told = member.gather({"shown": _summary(request, call), "uris": uris, "process": process})
    here = [(rank, each["process"][1]) for rank, each in enumerate(told) if each["process"][0] == process[0] != ""]
    member.processes = dict(here[:MOST_SHOWN])
    for rank, each in enumerate(told):
        for name, value in told[0]["shown"].items():
            if each["shown"].get(name) != value:
                member.is_over = True
                shown = f"{each['shown'].get(name)} on rank {rank}, {value} on rank 0"
                raise UsageError(f"{name} differs in the group: {shown}", hint=STRICT)
        if each["uris"] != told[0]["uris"]:
            member.is_over = True
            what = f"on rank {rank} and rank 0, in a part that is not shown: a query or a login"
            raise UsageError(f"uri= differs in the group {what}", uri=told[0]["shown"]["uri="], hint=STRICT)


def _summary(request: Request, call: str) -> Mapping[str, str]:
    """Describe what has to be the same on all ranks, without secrets."""
    slices = request.slices
    named = type(slices).__name__ if isinstance(slices, (TensorParallel, Placements)) else None
    kind = f"a {named}" if named else "a callable" if callable(slices) else None
    return {
        "the call": call,
        "uri=": ", ".join(map(redact, request.uris)),
        "framework=": str(request.framework),
        "dtype=": str(request.dtype),
        "verify=": chosen_verification(request.verify),
        "slices=": kind or ("None" if slices is None else "a mapping"),
        "fs=": "None" if request.fs is None else type(request.fs).__name__,
    }
