"""A server that ignores a slash at the end of a URL must not send the whole file for a listing."""

from __future__ import annotations

import pytest
from servers.one_file import DATA, one_file

import streamer


@pytest.mark.parametrize("path", ["/get?file=a", "/download/1", "/a.bin", "/get.safetensors?file=a"])
def test_a_file_is_not_listed_as_a_folder_regression(path):
    with one_file() as server:
        url = server.url.removesuffix("/object") + path
        assert len(streamer.load(url, framework="np", progress=False)) == 2
        assert all("range" in each.headers for each in server.requests)
        assert sum(each.end - each.begin for each in server.requests) < 1.5 * len(DATA)
