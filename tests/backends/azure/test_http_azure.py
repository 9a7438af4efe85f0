"""Which URLs are Azure's."""

from __future__ import annotations

import sys

import pytest
from each_row import each_row

from streamer.backends.http.store import is_for_azure, streamer_open_store
from streamer.core.errors import UnknownSchemeError
from streamer.core.options.limits import Limits

FILE = "https://account.blob.core.windows.net/container/model.safetensors"


@each_row(
    ("uri", "options", "environment", "expected"),
    [
        (FILE, {}, {}, False),
        (f"{FILE}?sv=1&sig=abc", {}, {"AZURE_STORAGE_ACCOUNT_KEY": "x"}, False),
        (FILE, {}, {"AZURE_STORAGE_ACCOUNT_KEY": "x"}, True),
        (FILE, {}, {"AZURE_CLIENT_ID": "x"}, True),
        (FILE, {"account_key": "x"}, {}, True),
        (FILE, {"anon": False}, {}, True),
        (FILE, {"headers": {}}, {}, False),
        (FILE.replace("https", "http"), {"account_key": "x"}, {}, False),
        (FILE.replace(".net", ".net.example.com"), {"account_key": "x"}, {}, False),
        ("https://account.dfs.core.windows.net/container/folder", {}, {}, True),
        ("https://account.blob.core.windows.net/container/*.safetensors", {}, {}, True),
        ("https://host/.blob.core.windows.net/folder", {}, {"AZURE_CLIENT_ID": "x"}, False),
        ("https://user.blob.core.@host/folder", {"account_key": "x"}, {}, False),
    ],
)
def test_a_file_anyone_may_read_is_plain_http_and_all_else_is_azures(uri, options, environment, expected):
    assert is_for_azure(uri, options, environment) is expected


def test_without_its_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "streamer.backends.azure.store", None)
    with pytest.raises(UnknownSchemeError, match=r"streamer\[azure\]") as caught:
        streamer_open_store("https", "https://account.blob.core.windows.net/container/folder?sig=canary", {}, Limits())
    assert "canary" not in str(caught.value)
