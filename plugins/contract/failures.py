"""Failures (missing, denied, replaced, truncated and deleted objects), and options in other processes and in texts."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from concurrent.futures import ProcessPoolExecutor

import pytest

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    CredentialsError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
    TruncatedError,
)
from streamer.plugins.contract.storage import (
    JOIN_S,
    ContractStorage,
    opened_object,
    pattern,
    read_whole,
    rule,
    settings,
)
from streamer.plugins.guard import unguarded
from streamer.plugins.registry import open_store


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
        assert data == old, "bytes of the new object were read in place of the old ones, without a ChangedError"

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


class SharingContract(ContractStorage):
    """See the module's docstring."""

    @rule
    def test_options_can_be_pickled_and_used_by_another_process(self) -> None:
        """Workers get the same options by pickle, and read the same bytes with them."""
        if not self.is_shared:
            pytest.skip("these objects exist only in this process")
        uri = self._put("a.safetensors", b"read elsewhere")
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            assert pool.submit(_read_elsewhere, uri, pickle.dumps(dict(self.storage_options))).result(JOIN_S * 4) == (
                b"read elsewhere"
            )

    @rule
    def test_no_secret_is_shown(self) -> None:
        """No secret is in the text of a store, an object, a source or an error with its causes."""
        uri = self._put("a.safetensors", b"123")
        store = self._open(uri)
        info = store.info(store.root)
        shown = [repr(each) for each in (unguarded(store), info, store.source(info))] + [store.root]
        absent = self._open(self._uri("absent.safetensors"))
        with pytest.raises(ObjectNotFoundError) as caught:
            absent.info(absent.root)
        shown.append("".join(traceback.format_exception(caught.value)))
        for secret in self.secrets:
            assert not any(secret in text for text in shown), f"a secret of {len(secret)} characters is shown"


def _read_elsewhere(uri: str, options: bytes) -> bytes:
    return read_whole(opened_object(open_store(uri, pickle.loads(options))))  # noqa: S301 (the test's own)
