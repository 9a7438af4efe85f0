"""Options: other processes can use them, and no text shows their secrets."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from concurrent.futures import ProcessPoolExecutor

import pytest

from streamer.core.errors import ObjectNotFoundError
from streamer.plugins.contract.rules import rule
from streamer.plugins.contract.storage import JOIN_S, ContractStorage, opened_object, read_whole
from streamer.plugins.guard.store import unguarded
from streamer.plugins.registry import open_store

__all__ = ["SharingContract"]


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
