"""Failures: missing, denied, replaced, truncated and deleted objects."""

from __future__ import annotations

import pytest

from streamer.core.engine.small_reads import read_ranges
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    CredentialsError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
    TruncatedError,
)
from streamer.plugins.contract.rules import rule
from streamer.plugins.contract.storage import ContractStorage, opened_object, pattern, read_whole, settings
from streamer.plugins.registry import open_store

__all__ = ["FailuresContract"]


class FailuresContract(ContractStorage):
    """See the module's docstring."""

    @rule
    def test_a_missing_object_is_not_found(self) -> None:
        """`info` of a missing object raises `ObjectNotFoundError` that names it."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri("b.safetensors"))
        with pytest.raises(ObjectNotFoundError, match=r"b\.safetensors"):
            store.info(store.root)

    @rule
    def test_a_folder_is_not_an_object(self) -> None:
        """`info` of a folder raises `ObjectNotFoundError`."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        with pytest.raises(ObjectNotFoundError):
            store.info(store.root)

    @rule
    def test_denied_access_says_so(self) -> None:
        """Wrong credentials get `AccessDeniedError` or `CredentialsError`, and no bytes."""
        if self.denied_options is None:
            pytest.skip("this storage has no access control")
        uri = self._put("a.safetensors", b"123")
        with pytest.raises((AccessDeniedError, CredentialsError)):
            read_whole(opened_object(open_store(uri, self.denied_options)))

    @rule
    def test_a_replaced_object_is_never_mixed_with_the_old_one(self) -> None:
        """Bytes of two versions are never mixed: a later read of the same size raises, or still gives the old bytes."""
        old, new = pattern(500_000, seed=1), pattern(500_000, seed=2)
        uri = self._put("a.safetensors", old)
        _, pinned = read_ranges([self._object(uri)], [(0, 0, 1000)], settings())
        self._put("a.safetensors", new)
        if not self.tells_replacement:
            pytest.skip("this storage has no versions")
        try:
            data = read_whole(pinned[0])
        except ChangedError:
            return
        assert data == old, "bytes of the new object came for the old one, and no ChangedError"

    @rule
    def test_a_truncated_object_is_an_error(self) -> None:
        """Reading an object that became shorter raises; it is never taken for complete."""
        old = pattern(500_000)
        source_object = self._object(self._put("a.safetensors", old))
        self._put("a.safetensors", pattern(400_000))
        if self.keeps_versions:
            assert read_whole(source_object) == old
            return
        with pytest.raises((ChangedError, TruncatedError, RangeResponseError)):
            read_whole(source_object)

    @rule
    def test_an_object_deleted_meanwhile_is_an_error(self) -> None:
        """Reading a deleted object raises."""
        old = pattern(500_000)
        source_object = self._object(self._put("a.safetensors", old))
        self.delete(self._names.pop())
        if self.keeps_versions:
            assert read_whole(source_object) == old
            return
        with pytest.raises(StorageError):
            read_whole(source_object)
