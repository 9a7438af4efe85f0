"""Compares two checkpoints tensor by tensor, or the files below two URIs, and says how far it has compared them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from streamer import _native
from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint, pinned
from streamer._commands.contents import shape_text
from streamer._locate_shards import opened_store
from streamer._pull.listing import Listing, files_below, is_selected
from streamer._stream import Stream
from streamer.core.errors import AccessDeniedError, FormatError, ManifestError, ObjectNotFoundError, StreamerError
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import printable_lines
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.redact import redact
from streamer.core.shards.shards import settled, sized
from streamer.core.store.digests import ObjectDigest
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import Store
from streamer.core.tensors.tensor_bytes import bytes_of
from streamer.core.verification.file_bytes import FileBytes, are_equal

COMPARED = {
    "headers": "headers only: names, shapes and dtypes. --full compares the bytes, and so do two manifests",
    "manifests": "headers, and the digests of both manifests. --full compares the bytes, which may be newer",
    "bytes": "headers, and the CRC-32C of every byte",
}


@dataclass(frozen=True)
class DiffReport:
    """The result of `diff`."""

    first: str  # the URIs, without secrets
    second: str
    compared: str  # a key of `COMPARED`
    same: int  # number of tensors in which no difference was found
    only_in_first: tuple[str, ...]
    only_in_second: tuple[str, ...]
    differing: dict[str, str]  # tensor to what differs
    metadata: tuple[str, ...]  # the names of the metadata whose values differ, which is no difference of tensors

    @property
    def is_different(self) -> bool:
        """Whether a difference was found."""
        return bool(self.only_in_first or self.only_in_second or self.differing)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON; only bytes make tensors equal, as a manifest may be old."""
        is_equal = False if self.is_different else True if self.compared == "bytes" and self.same else None
        return {**asdict(self), "equal": is_equal}

    def __str__(self) -> str:
        lines = [f"only in the first: {name}" for name in self.only_in_first]
        lines += [f"only in the second: {name}" for name in self.only_in_second]
        lines += [f"differs: {name}: {what}" for name, what in self.differing.items()]
        lines += [f"note: other metadata: {name}" for name in self.metadata]
        counts = f"{len(self.differing)} differ, {len(self.only_in_first)} only in the first"
        counts = f"{counts}, {len(self.only_in_second)} only in the second, {self.same} without a difference"
        return printable_lines([*lines, f"{counts}. Compared: {COMPARED[self.compared]}"])


def diff(first: Request, second: Request, *, in_full: bool, progress: ProgressOption) -> DiffReport:
    """Compare two checkpoints; raises as `streamer.open`, and in full as `streamer.stream`."""
    requests = [pinned(replace(each, progress=progress)) for each in (first, second)]
    opened = [_opened(each, in_full=in_full) for each in requests]
    one, other = ({name: each.kept for name, each in checkpoint.catalog.tensors.items()} for checkpoint, _ in opened)
    differing = {}
    for name in sorted(one.keys() & other.keys()):
        mine, its = one[name], other[name]
        if mine.dtype != its.dtype:
            differing[name] = f"dtype {mine.dtype} and {its.dtype}"
        elif tuple(mine.shape) != tuple(its.shape):
            differing[name] = f"shape {shape_text(mine.shape)} and {shape_text(its.shape)}"
    common = [name for name in one if name in other and name not in differing]
    digests = [of_manifest for _, of_manifest in opened]
    compared = "headers" if None in digests else "manifests"
    if in_full:
        compared = "bytes"
        digests = [_read(checkpoint, each, common) for (checkpoint, _), each in zip(opened, requests, strict=True)]
    if compared != "headers":
        of_one, of_other = (each or {} for each in digests)
        what = "other bytes" if in_full else "another digest in its manifest"
        differing |= {name: what for name in sorted(common) if of_one[name] != of_other[name]}
    (a, _), (b, _) = opened
    gone, new = sorted(one.keys() - other.keys()), sorted(other.keys() - one.keys())
    same = len(one.keys() & other.keys()) - len(differing)
    notes = sorted(name for name, _ in {*a.catalog.metadata.items()} ^ {*b.catalog.metadata.items()})
    return DiffReport(a.label, b.label, compared, same, tuple(gone), tuple(new), differing, (*dict.fromkeys(notes),))


def _opened(request: Request, *, in_full: bool) -> tuple[OpenedCheckpoint, Mapping[str, int] | None]:
    """Open a checkpoint; return it with the digests of its manifest, or None if there is none or bytes are read."""
    if in_full:
        return open_checkpoint(request, any_format=True), None
    try:
        checkpoint = open_checkpoint(replace(request, verify="manifest"), any_format=True)
    except ManifestError:
        raise
    except (AccessDeniedError, FormatError, ObjectNotFoundError):  # no manifest, or a format without one
        return open_checkpoint(request, any_format=True), None
    if checkpoint.is_sealed:  # the digests of its manifest are of encrypted bytes
        return checkpoint, None
    of_shards = checkpoint.tensor_digests()
    return checkpoint, {name: of_shards[each.shard][name].crc32c for name, each in checkpoint.catalog.tensors.items()}


def _read(checkpoint: OpenedCheckpoint, request: Request, names: Collection[str]) -> dict[str, int]:
    """Read tensors, and return the CRC-32C of each."""
    wanted = list(checkpoint.catalog.in_file_order(set(names)))
    framework = framework_for(request)
    found = {}
    with Stream(checkpoint, wanted, framework, checkpoint.verification(wanted), progress=request.progress) as stream:
        for name, tensor in stream:
            found[name] = _native.crc("crc32c", bytes_of(tensor))
    return found


Sign = Literal["=", "+", "-", "*", "!"]  # as of ``rclone check``
_Compared: TypeAlias = "tuple[Sign, str | StreamerError | None]"  # with a key of `HOW`, or with the error
HOW = {"digest": "by digests of their storages", "read": "by their bytes", "size": "by size alone"}


@dataclass
class CheckedFiles:
    """The result of `check_files`: the sign of each file, and how many files were found equal in which way."""

    first: str  # the URIs, without secrets
    second: str
    signs: dict[str, Sign] = field(default_factory=dict)  # file name to its sign
    equal_by: dict[str, int] = field(default_factory=dict)  # a key of `HOW` to the number of files
    errors: dict[str, str] = field(default_factory=dict)  # file name to its error
    worst: StreamerError | None = None  # the first of these errors

    def note(self, name: str, compared: _Compared) -> None:
        """Add a file that both sides have."""
        self.signs[name], how = compared
        if isinstance(how, StreamerError):
            self.errors[name] = str(how)
            self.worst = self.worst or how
        elif how:
            self.equal_by[how] = self.equal_by.get(how, 0) + 1

    def lines(self, *, with_equal: bool) -> str:
        """Return a line for each file."""
        shown = [f"{sign} {name}" for name, sign in self.signs.items() if with_equal or sign != "="]
        return printable_lines(shown)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON; sizes alone do not make files equal."""
        is_equal = (None if "size" in self.equal_by else True) if set(self.signs.values()) == {"="} else False
        return {**{k: v for k, v in vars(self).items() if k != "worst"}, "equal": is_equal}

    def summary(self) -> str:
        """Return the last line."""
        count = [*self.signs.values()].count
        how = ", ".join(f"{number} {HOW[each]}" for each, number in self.equal_by.items())
        same = f"{count('=')} same" + (f" ({how})" if how else "")
        only = f"{count('+')} only in the first, {count('-')} only in the second"
        return f"{same}, {count('*')} differ, {only}, {count('!')} not compared because of an error"


Place: TypeAlias = "tuple[str, Mapping[str, Any] | None]"  # a URI, and its storage options


def check_files(
    first: Place, second: Place, include: Sequence[str], exclude: Sequence[str], *, by_size: bool
) -> CheckedFiles:
    """Compare the files below two URIs; an error of one file is noted, and the others are compared."""
    settings, is_wanted = resolve(None), partial(is_selected, include=include, exclude=exclude)
    with ExitStack() as stack:
        sides = [_side(stack, each, settings, is_wanted) for each in (first, second)]
        (one, listing), (other, its_listing) = sides
        if listing.is_file and its_listing.is_file:  # two files are compared under the name of the first
            other = dict(zip(one, other.values(), strict=True))
        report = CheckedFiles(redact(first[0]), redact(second[0]))
        common = [name for name in one if name in other]
        if not (one or other):
            raise ObjectNotFoundError("the patterns select no file of either URI", uri=report.first, hint="Check them")
        compare = partial(_by_digest, one, other, by_size=by_size)
        found = dict(zip(common, in_parallel(compare, common, role="info"), strict=True))
        for name in sorted({*one, *other}):
            if name not in found:
                report.signs[name] = "+" if name in one else "-"
            else:
                report.note(name, found[name] or _by_bytes(one[name], other[name]))
        return report


def _side(
    stack: ExitStack, place: Place, settings: Settings, is_wanted: Callable[[str], bool]
) -> tuple[dict[str, FileBytes], Listing]:
    (uri,) = pinned(Request(uri=place[0], storage_options=place[1]), settings).uris
    store: Store = stack.enter_context(opened_store(uri, place[1], None, settings))
    listing = files_below(store, uri, settings)
    names = [name for name in sorted(listing.files) if is_wanted(name)]
    infos = settled(store, sized(store, [listing.files[name] for name in names]))
    return {name: FileBytes(store, info, settings) for name, info in zip(names, infos, strict=True)}, listing


def _by_digest(
    one: Mapping[str, FileBytes], other: Mapping[str, FileBytes], name: str, *, by_size: bool
) -> _Compared | None:
    """Compare two files without reading them; None if that says nothing."""
    if one[name].size_bytes != other[name].size_bytes:
        return "*", None
    if by_size:
        return "=", "size"
    try:
        digest, its_digest = one[name].digest(), other[name].digest()
    except StreamerError as error:
        return "!", error
    if not isinstance(digest, ObjectDigest) or not isinstance(its_digest, ObjectDigest):
        return None
    if digest == its_digest:
        return "=", "digest"
    ends = [[part.end for part in each.parts] for each in (digest, its_digest)]
    return ("*", None) if digest.algorithm == its_digest.algorithm and ends[0] == ends[1] else None


def _by_bytes(one: FileBytes, other: FileBytes) -> _Compared:
    try:
        return ("=", "read") if are_equal(one, other) else ("*", None)
    except StreamerError as error:
        return "!", error
