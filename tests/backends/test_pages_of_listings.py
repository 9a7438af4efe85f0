"""A folder whose listing has several pages: a page that was answered is kept while a later one is asked for again."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from servers.listed_folder import LISTINGS, PAGES, is_listing, shard
from servers.one_file import FILES, TENSORS, one_file
from servers.scripted_http import Answer, Request

import streamer
from streamer import Options

pytestmark = pytest.mark.server

TOKENS = ("continuation-token", "pageToken", "marker", "cursor")


@pytest.mark.parametrize(("storage", "status"), [("s3", 503), ("gs", 429), ("az", 503), ("hf", 429)])
def test_pages_that_were_answered_are_kept_regression(storage: str, status: int) -> None:
    """Each refusal began the listing anew, so that a long one never ended where many requests are refused."""
    pages: list[str] = []

    def script(request: Request, answer: Answer) -> None:
        if is_listing(request):
            query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
            page = next((query[name] for name in TOKENS if name in query), "")
            pages.append(page)
            if pages == ["", "1"]:
                answer.become(status, Retry_After="2")
            else:
                LISTINGS[storage](query, answer, server.url.removesuffix("/object"))
        elif ".safetensors" in request.path:
            number = int(request.path.partition(".safetensors")[0][-1])
            if request.begin < request.end and answer.status == 206:
                answer.body = shard(number)[request.begin : request.end]
        else:
            answer.become(404)

    with one_file(script) as server:
        uri, options = FILES[storage](server.url.removesuffix("/object"))
        folder = uri.removesuffix("a.safetensors") + "m"
        loaded = streamer.load(folder, framework="np", storage_options=options, options=Options(deadline_s=60))
    assert sorted(loaded) == sorted(f"{name}{number}" for name in ("bia", "heavy") for number in range(PAGES))
    assert all(np.array_equal(loaded[f"heavy{number}"], TENSORS["weight"]) for number in range(PAGES))
    assert pages == ["", "1", "1", "2"]
