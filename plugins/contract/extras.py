"""Optional methods of a store: `digest`, `folders`, `write`, and `begin_upload` with `remove`."""

from __future__ import annotations

import hashlib

import pytest

from streamer import _native
from streamer.core.errors import AccessDeniedError, ChangedError, UsageError
from streamer.core.options.options import MIB
from streamer.core.store.digests import CHECKSUMS, NoDigest
from streamer.core.store.sources import DigestingStore, FolderStore, ObjectInfo, WritableStore
from streamer.core.store.uploads import CommittingStore, Upload, UploadingStore
from streamer.plugins.contract.storage import ContractStorage, pattern, read_whole, rule


class ExtrasContract(ContractStorage):
    """See the module's docstring."""

    @rule
    def test_a_digest_matches_the_bytes(self) -> None:
        """A store with `digest` returns the digest of the whole object, or of all its parts, or why it has none."""
        data = pattern(2 * MIB + 3)
        store = self._open(self._put("a.safetensors", data))
        if not isinstance(store, DigestingStore):
            pytest.skip("this store has no digests")
        digest = store.digest(store.info(store.root))
        if isinstance(digest, NoDigest):
            assert digest.reason
            return
        assert digest.parts[-1].end == len(data)
        begin = 0
        for part in digest.parts:
            expected = _digest(digest.algorithm, data[begin : part.end])
            assert part.value == expected, f"digest gave {part.value} for bytes whose {digest.algorithm} is {expected}"
            begin = part.end

    @rule
    def test_every_sub_folder_is_named(self) -> None:
        """A store with `folders` lists the sub-folders of a folder, sorted, and no files; a file has no sub-folders."""
        if not isinstance(self._open(self._uri()), FolderStore):
            pytest.skip("this store lists no folders")
        for name in ("a.bin", "vae/model.bin", "unet/a/b.bin", "unet/c.bin"):
            self._put(name, b"123")
        store = self._open(self._uri())
        assert isinstance(store, FolderStore)
        assert store.folders(store.root) == ["unet", "vae"]
        assert store.folders(f"{store.root}/unet") == ["a"]
        assert store.folders(f"{store.root}/unet/a") == store.folders(f"{store.root}/a.bin") == []
        assert [self.name(info) for info in self._listed(self._open(self._uri("unet")))] == ["c.bin"]

    @rule
    def test_what_is_written_is_read_and_replaced(self) -> None:
        """A store with `write` writes a small file completely, also over an existing file."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        if not isinstance(store, WritableStore):
            pytest.skip("this store cannot be written")
        for data in (b"first", b"and second"):
            try:
                store.write(f"{store.root}/written.json", data)
            except AccessDeniedError:
                pytest.skip("these options allow reading only")
            self._names.append(f"{self._folder}/written.json")
            assert read_whole(self._object(self._uri("written.json"))) == data

    @rule
    def test_an_upload_shows_up_whole_and_only_if_nothing_else_is_there(self) -> None:
        """A store with `begin_upload` and `remove` writes an object in parts; an aborted upload leaves no object."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        if not isinstance(store, UploadingStore) or isinstance(store, CommittingStore):  # these show all files together
            pytest.skip("this store takes no uploads")
        data, part_bytes = pattern(5 * MIB + 3), 5 * MIB  # S3 accepts no smaller parts
        try:
            aborted, kept = (self._uploaded(store, name, data, part_bytes, None) for name in ("no.bin", "yes.bin"))
        except (AccessDeniedError, UsageError):
            pytest.skip("these options allow reading only, or this server cannot be written")
        aborted.abort()
        kept.finish()
        kept.finish()  # repeated, as after a lost answer
        with pytest.raises(ChangedError):
            self._write_over(store, "yes.bin", b"other")
        assert read_whole(self._object(self._uri("yes.bin"))) == data
        self._uploaded(store, "yes.bin", b"new", part_bytes, store.info(f"{store.root}/yes.bin")).finish()
        assert read_whole(self._object(self._uri("yes.bin"))) == b"new"
        for _ in range(2):
            store.remove(f"{store.root}/yes.bin")
        assert [self.name(info) for info in self._listed(self._open(self._uri()))] == ["a.safetensors"]

    def _write_over(self, store: UploadingStore, name: str, data: bytes) -> None:
        """Write an object as if none of this name existed."""
        upload = self._uploaded(store, name, data, MIB, None)
        try:
            upload.finish()
        finally:
            upload.abort()

    def _uploaded(
        self, store: UploadingStore, name: str, data: bytes, part_bytes: int, replaced: ObjectInfo | None
    ) -> Upload:
        root: str = store.root  # type: ignore[attr-defined]  # every store has it
        upload = store.begin_upload(f"{root}/{name}", len(data), part_bytes, replaced)
        for begin in range(0, len(data), part_bytes):
            upload.send(begin, memoryview(data)[begin : begin + part_bytes])
        return upload


def _digest(algorithm: str, data: bytes) -> str:
    if algorithm in CHECKSUMS:
        return f"{_native.crc(algorithm, data):0{2 * CHECKSUMS[algorithm]}x}"
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
