"""Writes the manifest of a checkpoint: one read of all its bytes, one small file beside it.

Guarantees: the digests belong to one version of every shard, the version whose headers were read. Refuses read-only
storages before anything is read. A web server tells whether it takes ``PUT`` when the manifest is sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from streamer import _native, plugins
from streamer._checkpoint_headers import OpenedCheckpoint, open_checkpoint, pinned
from streamer._locate_shards import close_store
from streamer._progress import Progress
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import AccessDeniedError, OptionError, UsageError
from streamer.core.format.manifest import ALGORITHM, HASH, Manifest, ShardManifest, TensorDigest, render_manifest
from streamer.core.options.options import Options
from streamer.core.quoting import quoted
from streamer.core.request.request import ProgressOption, Request, StorageOptions
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store, WritableStore
from streamer.core.store.uploads import UploadingStore
from streamer.core.store.versioned_uploads import write_whole
from streamer.core.verification.by_manifest import manifest_paths, name_in_manifest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

DigestOption: TypeAlias = Literal["crc32c", "sha256"]


@dataclass(frozen=True)
class ManifestReport:
    """The result of `write_manifest`.

    Attributes:
        uri: The URI of the manifest, without secrets.
        shards: Number of shards in it.
        tensors: Number of tensors in it.
        bytes: Bytes of these tensors, all of which were read.
        seconds: Duration of the call.
    """

    uri: str
    shards: int
    tensors: int
    bytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)


def write_manifest(
    uri: str | os.PathLike[str],
    *,
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    digest: DigestOption = "crc32c",
) -> ManifestReport:
    """Read a checkpoint and write the digests of its tensors beside it, for loads with ``verify="manifest"``.

    The manifest is named after the index or the only shard: ``model.safetensors.manifest.json``. An existing manifest
    is replaced. Later loads are compared with the bytes that are read now: write the manifest while they are known to
    be correct, for instance right after saving them.

    Args:
        uri: A file, folder or index, as for `streamer.load`, but no glob and no list.
        storage_options: As for `streamer.load`; the credentials must allow writing.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`.
        progress: As for `streamer.load`.
        digest: ``"crc32c"`` finds damage. ``"sha256"`` adds a SHA-256 of each tensor, with which loads also find the
            bytes of an attacker who cannot change the manifest, such as a peer. It costs more time of a processor.

    Returns:
        The URI of the manifest and what it contains.

    Raises:
        UsageError: the storage cannot be written, or `uri` is a glob or a list.
        OptionError: `digest` is none of these.
        StreamerError: as for `streamer.load`.

    Example:
        >>> streamer.write_manifest("s3://bucket/model").uri                     # doctest: +SKIP
        's3://bucket/model/model.safetensors.manifest.json'
    """
    started = time.perf_counter()
    if digest not in (ALGORITHM, HASH):
        raise OptionError(f'digest is "{ALGORITHM}" or "{HASH}", not {digest!r}')
    request = Request(uri=uri, storage_options=storage_options, fs=fs, options=options, progress=progress, verify="off")
    if not isinstance(request.uri, str):
        raise UsageError("a manifest describes one checkpoint: one file, folder or index", hint="Call it once for each")
    request = pinned(request)
    (uri,) = request.uris
    own_options = request.storage_options if isinstance(request.storage_options, Mapping) else None
    secrets = SecretTexts(uri, getattr(request.fs, "storage_options", own_options))
    with secrets.masking_errors(), ExitStack() as stack:
        store = plugins.open_store(uri, own_options, fs=request.fs)
        stack.callback(close_store, store)
        _check_writable(store, uri)
        checkpoint = open_checkpoint(request, uses_cache=False, is_raw=True)  # digests describe the stored bytes
        if checkpoint.kind == "glob":
            raise UsageError("a manifest describes a whole checkpoint, not a glob", uri=checkpoint.label)
        path = manifest_paths(checkpoint.infos, checkpoint.index_path)[0]
        _check_names([name_in_manifest(info.path, path) for info in checkpoint.infos], checkpoint.label)
        with suppress(AccessDeniedError):  # some may write and not look
            info_if_present(store, path)  # raises, before all bytes are read, if the storage cannot hold this name
        manifest, read_bytes = _digested(checkpoint, path, request.progress, is_hashed=digest == HASH)
        write_whole(store, path, render_manifest(manifest), info_if_present(store, path))
        written = store.info(path)
    tensors = sum(len(shard.tensors) for shard in manifest.shards.values())
    seconds = time.perf_counter() - started
    return ManifestReport(written.uri, len(manifest.shards), tensors, read_bytes, seconds)


def _check_writable(store: Store, uri: str) -> None:
    if not isinstance(store, (WritableStore, UploadingStore)):
        hint = "Write the manifest of a copy on a disk, and upload it beside the shards"
        raise UsageError("this storage cannot be written", uri=redact(uri), hint=hint)


def _check_names(names: list[str], uri: str) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            hint = "Rename the file, and write the manifest again"
            raise UsageError(f"the name of shard {quoted(name)} is not valid UTF-8", uri=uri, hint=hint) from error


def _digested(
    checkpoint: OpenedCheckpoint, path: str, progress: ProgressOption, *, is_hashed: bool
) -> tuple[Manifest, int]:
    """Read every tensor; return the digests, and the bytes that were read."""
    wanted = list(checkpoint.catalog.in_file_order())
    plan = plan_reads(
        (Item(each.shard, each.entry.begin, each.entry.end) for each in wanted), checkpoint.settings.coalesce_gap_bytes
    )
    digests = _native.DigestPlan()
    for each in wanted:
        digests.add_item(each.shard, ALGORITHM, None, b"" if is_hashed else None)
    digests_by_name: list[dict[str, TensorDigest]] = [{} for _ in checkpoint.catalog.shards]
    with Progress(progress, plan.span_bytes, checkpoint.label) as shown:
        session = ReadSession(
            checkpoint.catalog.shards, plan, checkpoint.settings, on_progress=shown.update, digests=digests
        )
        with closing(session):
            while items := session.next_items():
                for item in items:
                    session.take(item)  # frees its memory
                    entry = wanted[item].entry
                    value = session.digest_pieces(item)[0][2] if entry.end > entry.begin else 0
                    hashed = (session.sha256(item), entry.begin) if is_hashed else ()
                    digest = TensorDigest(entry.dtype, tuple(entry.shape), entry.end - entry.begin, value, *hashed)
                    digests_by_name[wanted[item].shard][entry.name] = digest
    in_order: list[dict[str, TensorDigest]] = [{} for _ in digests_by_name]
    for each in wanted:
        in_order[each.shard][each.entry.name] = digests_by_name[each.shard][each.entry.name]
    shards = {
        name_in_manifest(info.path, path): ShardManifest(shard.size_bytes, tensors)
        for info, shard, tensors in zip(checkpoint.infos, checkpoint.catalog.shards, in_order, strict=True)
    }
    return Manifest(shards), plan.item_bytes
