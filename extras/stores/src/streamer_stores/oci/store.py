"""The files of one artifact or image in a registry.

Guarantees: a store reads the manifest once, so all its answers are of one version of the artifact, until it writes
itself. Plain blobs and plain tar layers are read natively by ranges, where the registry redirects them to. A layer
that is compressed is unpacked into a temporary folder, which goes with the store.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamer.plugins import (
    ChangedError,
    FileSource,
    HttpSource,
    Limits,
    NoDigest,
    ObjectDigest,
    ObjectInfo,
    ObjectNotFoundError,
    OptionError,
    PartDigest,
    Source,
    UsageError,
    check_option_names,
    digest_of,
    hookimpl,
)
from streamer_stores.oci.files import File, FileTree, Member
from streamer_stores.oci.layers import BlobBytes, Entry, placed_files, unpacked_files
from streamer_stores.oci.logins import check_login_options
from streamer_stores.oci.manifests import Layer, chosen_manifest, layers_in, parse_document
from streamer_stores.oci.reference import parse_reference
from streamer_stores.oci.registry import Registry

if TYPE_CHECKING:
    from streamer.plugins import Upload

OPTIONS = ("auth_file", "password", "plain_http", "platform", "token", "unpack", "username", "verify")
MOST_INDEXES = 2  # an index may name another


@hookimpl
def streamer_open_store(uri: str, storage_options: Mapping[str, Any], limits: Limits) -> OciStore | None:
    """Open the artifact of `uri`; decline URLs of Oracle's object storage, ``oci://bucket@namespace/…``."""
    if "@" in uri.partition("://")[2].partition("/")[0]:
        return None
    check_option_names("oci://", storage_options, OPTIONS)
    for name in ("plain_http", "unpack"):
        if not isinstance(storage_options.get(name, False), bool):
            raise OptionError(f"{name} must be True or False")
    check_login_options(storage_options)
    return OciStore(uri, storage_options, limits)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source of plain blobs."""
    return HttpSource


class OciStore:
    """See the module's docstring. A path is the URL without its scheme."""

    root: str
    server: str

    def __init__(self, uri: str, options: Mapping[str, Any], limits: Limits) -> None:
        self.place = parse_reference(uri)
        self.uri = f"oci://{self.place.prefix}"  # of the artifact
        self.root = f"{self.place.prefix}/{self.place.path}".rstrip("/")
        self.registry = Registry(self.place, options, limits)
        self.server = self.registry.server
        self._options, self._limits = options, limits
        self.lock = threading.RLock()
        self._files: FileTree[Entry] | None = None
        self._folders: list[Path] = []  # temporary ones
        weakref.finalize(self, _remove, self._folders)
        self.is_written = False  # by this store, which from then on looks at the manifest each time

    def info(self, path: str) -> ObjectInfo:
        """Describe one file."""
        entry = self._files_now().file(self.inner(path))
        if entry is None:
            hint = "Name a file of the artifact, by its title"
            raise ObjectNotFoundError("The artifact holds no such file", uri=f"oci://{path}", hint=hint)
        return self._described(self.inner(path), entry)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files directly in a folder; a tag that does not exist has none."""
        folder = self.inner(prefix)
        try:
            found = self._files_now()
        except ObjectNotFoundError:
            return []
        return [self._described(f"{folder}/{name}".lstrip("/"), entry) for name, entry in found.files_in(folder)]

    def folders(self, prefix: str) -> list[str]:
        """List the folders directly in a folder."""
        return self._files_now().folders_in(self.inner(prefix))

    def source(self, info: ObjectInfo) -> Source:
        """Return where the bytes of a file are: at the registry, behind its redirects, or on this disk."""
        entry = self._entry(info)
        if entry.file is not None:
            return FileSource(entry.file, inside=str(Path(entry.file).parent))
        source = self.registry.blob(entry.layer.blob, info.uri)
        if not entry.layer.is_tar:
            return source
        if isinstance(source, HttpSource):
            return _part_of(source, entry)
        read, begin = source.read_into, entry.offset_bytes
        return replace(source, read_into=lambda buffer, offset: read(buffer, begin + offset))

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Return the digest that the manifest names, or that of an unpacked file of a layer whose digest was right."""
        entry = self._entry(info)
        algorithm, _, value = entry.layer.blob.digest.partition(":")
        if entry.sha256 is not None:
            algorithm, value = "sha256", entry.sha256
        elif entry.layer.is_tar:
            return NoDigest("it is a part of a tar layer, whose digest is of the whole layer: unpack=True verifies it")
        if algorithm != "sha256":
            return NoDigest(f"its digest is by {algorithm}")
        return ObjectDigest(algorithm, (PartDigest(entry.size_bytes, value),))

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of the registry and the repository: within them, the version names the bytes."""
        return digest_of("oci", self.server, self.place.repository, info.version)

    def begin_upload(self, path: str, size_bytes: int, _: int, replaced: ObjectInfo | None) -> Upload:
        """Begin a file, which becomes a layer of the tag's ModelPack artifact; raises as `UploadingStore`."""
        from streamer_stores.oci.upload import OciUpload  # noqa: PLC0415 (a load needs none)

        self.check_can_write()
        return OciUpload(self, path, size_bytes, replaced)

    def write(self, path: str, data: bytes) -> None:
        """Write a small file."""
        self.check_can_write()
        current = self._files_now(is_new=True).file(self.inner(path))
        replaced = None if current is None else self._described(self.inner(path), current)
        upload = self.begin_upload(path, len(data), 1, replaced)
        if data:
            upload.send(0, memoryview(data))
        upload.finish()

    def remove(self, path: str) -> None:
        """Remove a file from the tag's artifact."""
        from streamer_stores.oci.upload import publish  # noqa: PLC0415 (a load needs none)

        self.check_can_write()
        publish(self, self.inner(path), None)

    def close(self) -> None:
        """Do nothing: sources may need what the store holds."""

    def check_can_write(self) -> None:
        """Refuse to change an artifact that a digest names."""
        if self.place.is_pinned:
            hint = "Name a tag, without a digest"
            raise UsageError("An artifact that a digest names cannot be changed", uri=self.uri, hint=hint)
        self.is_written = True

    def holds(self, inner: str) -> bool:
        """Look whether the artifact has a file now."""
        return self._files_now(is_new=True).file(inner) is not None

    def inner(self, path: str) -> str:
        """Return a path in the artifact."""
        return path[len(self.place.prefix) :].strip("/")

    def manifest(self) -> dict[str, Any]:
        """Request the manifest that the URL names, of the platform if there are several."""
        name = self.place.name
        for _ in range(MOST_INDEXES + 1):
            document = parse_document(self.registry.manifest(name, self.uri), self.uri)
            if "manifests" not in document:
                return document
            name = chosen_manifest(document, self._options.get("platform"), self.uri).digest
        raise UsageError(
            "The index of the artifact names an index again", uri=self.uri, hint="Name a manifest by digest"
        )

    def _files_now(self, *, is_new: bool = False) -> FileTree[Entry]:
        with self.lock:
            if self._files is not None and not (is_new or self.is_written):
                return self._files
            try:
                document = self.manifest()
            except ObjectNotFoundError:
                if not self.is_written:
                    raise
                document = {}  # the tag is made by the first file
            files: FileTree[Entry] = FileTree()
            for layer in layers_in(document, self.uri):
                files.add_layer(self._files_of(layer))
            self._files = files
            return files

    def _files_of(self, layer: Layer) -> list[Member[Entry]]:
        if not layer.is_tar:
            return [File(layer.path, Entry(layer, layer.blob.size_bytes))]
        blob = BlobBytes(self.registry.blob(layer.blob, self.uri), layer.blob.size_bytes, self.uri, self._limits)
        if not layer.compression and not self._options.get("unpack"):
            return placed_files(layer, blob, self.uri)
        folder = Path(tempfile.mkdtemp(prefix="streamer-layer-"))
        self._folders.append(folder)
        return unpacked_files(layer, blob, folder, self.uri)

    def _entry(self, info: ObjectInfo) -> Entry:
        with self.lock:
            entry = None if self._files is None else self._files.file(self.inner(info.path))
        if entry is None or entry.version != info.version:
            entry = self._files_now(is_new=True).file(self.inner(info.path))
        if entry is None:
            raise ObjectNotFoundError("The artifact no longer holds this file", uri=info.uri, hint="Load again")
        if entry.version != info.version:
            raise ChangedError("The tag holds another version of the file by now", uri=info.uri, hint="Load again")
        return entry

    def _described(self, inner: str, entry: Entry) -> ObjectInfo:
        path = f"{self.place.prefix}/{inner}"
        return ObjectInfo(path, f"oci://{path}", entry.size_bytes, entry.version)


def _part_of(source: HttpSource, entry: Entry) -> HttpSource:
    """Return the source of a part of a layer."""
    refresh, whole_bytes = source.refresh, entry.layer.blob.size_bytes
    renewed = None if refresh is None else lambda: _part_of(refresh(), entry)
    return replace(source, offset_bytes=entry.offset_bytes, whole_bytes=whole_bytes, refresh=renewed)


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
