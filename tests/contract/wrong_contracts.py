"""The contract of each store in `wrong_stores`; run by `test_wrong_stores.py`, as a third party runs it."""

from __future__ import annotations

from wrong_stores import OBJECTS, VERSIONS, Right

from streamer.plugins.contract import BackendContract


class Shelf(BackendContract):
    is_shared = False
    timeout_s = 5.0
    storage_options = {"token": "the secret of the shelf"}  # noqa: RUF012 (the contract's own way)
    secrets = ("the secret of the shelf",)

    def put(self, name, data):
        OBJECTS[f"top/{name}"] = (data, str(next(VERSIONS)))

    def delete(self, name):
        del OBJECTS[f"top/{name}"]


def _contract(kind, timeout_s=Shelf.timeout_s):
    return type(f"Test{kind}", (Shelf,), {"folder_uri": f"shelf://{kind}/top", "timeout_s": timeout_s})


_wrong = Right.__subclasses__()
for _store in (Right, *_wrong, *(each for store in _wrong for each in store.__subclasses__())):
    _name = _store.__name__
    globals()[f"Test{_name}"] = _contract(_name, 0.2 if _name.startswith("Hanging") else Shelf.timeout_s)
