"""Manifests and indexes of artifacts and images, parsed from bytes into values. Pure.

https://github.com/opencontainers/image-spec and https://github.com/modelpack/model-spec
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamer.plugins import StorageError, UsageError
from streamer_stores.oci.reference import DIGEST
from streamer_stores.oci.registry import Blob

TITLE = "org.opencontainers.image.title"
FILE_PATH = "org.cncf.model.filepath"
MODEL_PACK = "application/vnd.cncf.model."
LISTS = ("layers", "manifests", "blobs")  # a manifest has one of them
_UNPACK = "io.deis.oras.content.unpack"
_ATTESTATION = "vnd.docker.reference.type"
_COMPRESSIONS = {"gzip": "gzip", "gz": "gzip", "zstd": "zstd"}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    """One blob of an artifact: a file, or an archive of files."""

    blob: Blob
    path: str  # of the file, without a slash at its beginning; of an archive, the folder that it is unpacked in
    is_tar: bool
    compression: str  # ``gzip``, ``zstd``, or empty
    descriptor: Mapping[str, Any] = field(repr=False, compare=False)  # as the manifest has it


def parse_document(body: bytes, uri: str) -> dict[str, Any]:
    """Parse a manifest or an index."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not any(isinstance(document.get(each), list) for each in LISTS):
        what = "The answer is not a manifest of an artifact"
        raise StorageError(what, uri=uri, hint="Check the registry; manifests of Docker's first version are not read")
    return document


def chosen_manifest(index: Mapping[str, Any], wanted: str | None, uri: str) -> Blob:
    """Choose the manifest of an index: of the platform, if there are several."""
    entries = [each for each in _mappings(index, "manifests") if _ATTESTATION not in (each.get("annotations") or {})]
    if wanted is None and len(entries) == 1:
        return _blob_of(entries[0], uri)
    names = [_platform_of(each) for each in entries]
    machine = platform.machine().lower()
    name = wanted or f"linux/{_MACHINES.get(machine, machine)}"
    for entry, each in zip(entries, names, strict=True):
        if each == name or each.startswith(f"{name}/"):
            return _blob_of(entry, uri)
    listed = ", ".join(filter(None, names)) or "none"
    hint = f"Choose one with storage_options={{'platform': …}}: {listed}"
    what = "the platform of the options" if wanted else name  # values of options are masked in messages
    raise UsageError(f"The artifact has no manifest for {what}", uri=uri, hint=hint)


def layers_in(manifest: Mapping[str, Any], uri: str) -> Iterator[Layer]:
    """Yield the layers of a manifest, in its order."""
    for entry in _mappings(manifest, "layers") or _mappings(manifest, "blobs"):
        kind, blob = str(entry.get("mediaType") or ""), _blob_of(entry, uri)
        annotations = entry.get("annotations")
        notes = annotations if isinstance(annotations, dict) else {}
        title = notes.get(FILE_PATH) or notes.get(TITLE)
        base, _, suffix = kind.replace(".tar.", ".tar+").partition("+")
        # ORAS gives plain files the type of a tar layer, and a title; folders that it has packed are marked.
        is_file = isinstance(title, str) and not kind.startswith(MODEL_PACK) and notes.get(_UNPACK) != "true"
        is_tar = base.endswith(".tar") and not is_file
        path = inner_path(title if isinstance(title, str) else "", uri)
        folder = (
            path if notes.get(_UNPACK) != "true" else path.rpartition("/")[0]
        )  # the archive holds the folder itself
        if is_tar and kind.startswith(MODEL_PACK):
            folder = ""  # the archive holds the whole path
        file = path or blob.digest.replace(":", "-")
        yield Layer(blob, folder if is_tar else file, is_tar, _COMPRESSIONS.get(suffix, "") if is_tar else "", entry)


def inner_path(text: str, uri: str) -> str:
    """Return a path in an artifact in plain form.

    Example:
        >>> inner_path("./vae//model.bin", "oci://host/a"), inner_path("/etc/", "oci://host/a")
        ('vae/model.bin', 'etc')
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in text:
        raise StorageError("The artifact names a path that leads out of it", uri=uri, hint="Do not use this artifact")
    return "/".join(parts)


def _blob_of(entry: Mapping[str, Any], uri: str) -> Blob:
    digest, size_bytes = entry.get("digest"), entry.get("size")
    is_size = isinstance(size_bytes, int) and not isinstance(size_bytes, bool) and 0 <= size_bytes < 1 << 63
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest) or not is_size:
        raise StorageError("The manifest names a blob without a digest or a size", uri=uri, hint="Push it again")
    return Blob(digest, int(str(size_bytes)))


def _mappings(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = document.get(name)
    return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []


def _platform_of(entry: Mapping[str, Any]) -> str:
    named = entry.get("platform")
    parts = [named.get(each) for each in ("os", "architecture", "variant")] if isinstance(named, dict) else []
    return "/".join(str(each) for each in parts if each)
