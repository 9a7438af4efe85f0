"""Writes files as layers of a ModelPack artifact: first the blobs, then the manifest, which shows them to readers.

Guarantees: no reader sees a manifest that names a missing blob, and each file is whole. A tag is not changed if it
holds something else than a ModelPack artifact. Registries cannot write a manifest on a condition: the file to replace
is looked at right before the manifest is written. If two programs save to one tag at the same time, the later manifest
may lack what the other program has added in between.
https://github.com/modelpack/model-spec/blob/main/docs/spec.md
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from streamer.plugins import ChangedError, HttpAnswer, ObjectInfo, ObjectNotFoundError, StorageError, UsageError
from streamer_stores.oci.manifests import FILE_PATH, MODEL_PACK, TITLE, layers_in
from streamer_stores.oci.registry import MANIFEST

if TYPE_CHECKING:
    from streamer_stores.oci.store import OciStore

CONFIG = f"{MODEL_PACK}config.v1+json"
ARTIFACT = f"{MODEL_PACK}manifest.v1+json"
# Kinds of files by the ends of their names; all others are weights.
_KINDS = (
    (re.compile(r"\.(json|txt|model|jinja|ya?ml)$", re.IGNORECASE), "weight.config"),
    (re.compile(r"\.(md|pdf)$|(^|/)(licen[sc]e|notice)[^/]*$", re.IGNORECASE), "doc"),
    (re.compile(r"\.(py|sh)$", re.IGNORECASE), "code"),
)
_STREAM = "application/octet-stream"


class OciUpload:
    """One blob, and then its place in the manifest; see `streamer.plugins.Upload`."""

    parallel_parts = 1  # a registry takes the pieces of a blob in their order
    needs_equal_parts = False

    def __init__(self, store: OciStore, path: str, size_bytes: int, replaced: ObjectInfo | None) -> None:
        self.uri = f"oci://{path}"
        self.version: str | None = None
        self._store, self._registry, self._path = store, store.registry, store.inner(path)
        if not self._path:
            raise UsageError("This is an artifact, not a file in it", uri=self.uri, hint="Name a file behind the tag")
        self._size_bytes, self._replaced = size_bytes, replaced
        self._digest, self._sent_bytes = hashlib.sha256(), 0
        answer = self._registry.send("blobs/uploads/", self.uri, "POST")
        self._url = self._next(answer, (202,), "place for uploads")
        self._is_complete = self._is_over = False
        if not size_bytes:
            self._complete()

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send a piece; if it is repeated, only what the registry lacks of it."""
        end = offset_bytes + part.nbytes
        if self._sent_bytes == offset_bytes:
            self._digest.update(part)
            self._sent_bytes = end
            begin = offset_bytes
        else:
            begin = self._held_bytes()
        if not offset_bytes <= begin <= end:
            what = f"The registry has {begin} bytes of the upload, and none of the next piece from {offset_bytes} on"
            raise StorageError(what, uri=self.uri, hint="Save again")
        if begin < end:
            headers = {"Content-Type": _STREAM, "Content-Range": f"{begin}-{end - 1}"}
            answer = self._registry.send(self._url, self.uri, "PATCH", headers, part[begin - offset_bytes :])
            self._url = self._next(answer, (202, 204), "such upload: it was removed before it was complete")
        if end == self._size_bytes:
            self._complete()

    def finish(self) -> None:
        """Put the file into the manifest of the tag."""
        if not self._is_complete:
            self._complete()
        if self.version is None:
            blob = {"digest": f"sha256:{self._digest.hexdigest()}", "size": self._size_bytes}
            publish(self._store, self._path, blob, replaced=self._replaced, is_only=True)
            self.version = str(blob["digest"])

    def abort(self) -> None:
        """End the upload; a blob that no manifest names is removed when the registry collects its garbage."""
        if not self._is_complete and not self._is_over:
            answer = self._registry.send(self._url, self.uri, "DELETE")
            if answer.status not in (200, 202, 204, 404, 405):
                raise self._registry.refusal(answer, self.uri, "such upload")
            self._is_over = True

    def _held_bytes(self) -> int:
        """Ask how much of the blob the registry has; its answer names the last byte."""
        answer = self._registry.send(self._url, self.uri)
        if answer.status not in (200, 202, 204):
            raise self._registry.refusal(answer, self.uri, "such upload")
        self._url = self._next(answer, (answer.status,), "such upload", may_stay=True)
        held = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("range", ""))
        return int(held[1]) + 1 if held and held[1] != "0" else 0

    def _complete(self) -> None:
        digest = f"sha256:{self._digest.hexdigest()}"
        url = f"{self._url}{'&' if '?' in self._url else '?'}digest={digest}"
        answer = self._registry.send(url, self.uri, "PUT", {"Content-Type": _STREAM})
        if answer.status == 404 and self._is_there(digest):  # the answer to an earlier attempt was lost
            self._is_complete = True
            return
        self._next(answer, (201, 204), "such upload", may_stay=True)
        self._is_complete = True

    def _is_there(self, digest: str) -> bool:
        return self._registry.send(f"blobs/{digest}", self.uri, "HEAD").status == 200

    def _next(self, answer: HttpAnswer, wanted: tuple[int, ...], what: str, *, may_stay: bool = False) -> str:
        """Return the URL of the next request, which each answer names anew."""
        if answer.status not in wanted:
            raise self._registry.refusal(answer, self.uri, what)
        place = answer.headers.get("location")
        if place:
            return urljoin(f"{self._registry.server}/", place)
        if may_stay:
            return self._url
        what = "The answer is not that of a registry: it does not say where the next piece goes"
        raise StorageError(what, uri=self.uri, hint="Check the registry, and the proxies on the way to it")


def publish(
    store: OciStore,
    path: str,
    blob: Mapping[str, Any] | None,
    *,
    replaced: ObjectInfo | None = None,
    is_only: bool = False,
) -> None:
    """Write the manifest of a tag with a file, or without it; other files, and archives, stay as they are.

    With `is_only`, the file that is there now must be `replaced`, or this very blob.
    """
    uri = f"{store.uri}/{path}"
    with store.lock:
        current = _current(store)
        others, layers = [], {}
        for layer in layers_in(current, uri):
            if layer.is_tar:
                others.append(dict(layer.descriptor))
            else:
                layers[layer.path] = dict(layer.descriptor)
        if path not in layers and others and store.holds(path):
            what, hint = "The file is in a tar layer, which is not changed", "Save under another name or tag"
            raise UsageError(what, uri=uri, hint=hint)
        found = layers.get(path, {}).get("digest")
        if found == (blob and blob["digest"]):
            return
        if is_only and found != (replaced and replaced.version):
            hint = "Wait until the other program ends, and save again with overwrite=True, or under another tag"
            raise ChangedError("Another program has changed the file meanwhile", uri=uri, hint=hint)
        if blob is None:
            del layers[path]
        else:
            layers[path] = {"mediaType": _type_of(path), **blob, "annotations": {TITLE: path, FILE_PATH: path}}
        _put(store, current, [*others, *(layers[each] for each in sorted(layers))], uri)


def _current(store: OciStore) -> dict[str, Any]:
    """Return the manifest of the tag; a new one if there is none."""
    try:
        document = store.manifest()
    except ObjectNotFoundError:
        return {}
    if (document.get("config") or {}).get("mediaType") != CONFIG:
        what = "The tag holds something else than a ModelPack artifact, which is not changed"
        raise UsageError(what, uri=store.uri, hint="Save under another tag")
    return document


def _put(store: OciStore, current: Mapping[str, Any], layers: list[dict[str, Any]], uri: str) -> None:
    config = {"descriptor": {"name": store.place.repository.rpartition("/")[2]}, "config": {}}
    text = _json({**config, "modelfs": {"type": "layers", "diffIds": [each["digest"] for each in layers]}})
    manifest = {
        **current,
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": {"mediaType": CONFIG, **_small_blob(store, text)},
        "layers": layers,
    }
    answer = store.registry.send(
        f"manifests/{store.place.name}", uri, "PUT", {"Content-Type": MANIFEST}, _json(manifest)
    )
    if answer.status not in (200, 201, 202):
        raise store.registry.refusal(answer, uri, "such repository")


def _small_blob(store: OciStore, text: bytes) -> dict[str, Any]:
    upload = OciUpload(store, f"{store.place.prefix}/config", len(text), None)
    upload.send(0, memoryview(text))
    return {"digest": f"sha256:{hashlib.sha256(text).hexdigest()}", "size": len(text)}


def _type_of(path: str) -> str:
    kind = next((kind for pattern, kind in _KINDS if pattern.search(path)), "weight")
    return f"{MODEL_PACK}{kind}.v1.raw"


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
