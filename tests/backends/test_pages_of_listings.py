"""A folder whose listing has several pages: a page that was answered is kept while a later one is asked for again."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from safetensors.numpy import save_file
from servers.listed_folder import LISTINGS, PAGES, is_listing, shard
from servers.one_file import FILES, TENSORS, one_file
from servers.scripted_http import Answer, Request
from uploads import UNLISTED, uploaded_unlisted

import streamer
from streamer import Options
from streamer._check import check

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


# --- if listing is refused, the error says so, and names what works without that permission -------------------------


@pytest.mark.parametrize("storage", UNLISTED)
def test_an_error_says_that_listing_was_refused_and_what_works_regression(
    request: pytest.FixtureRequest, storage: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": np.ones(3, "f4")}, folder / "weights.safetensors")
    uri, options = uploaded_unlisted(request, storage, folder)
    for ask in (streamer.load, streamer.open, check):
        with pytest.raises(streamer.AccessDeniedError) as caught:
            ask(uri, storage_options=options)
        assert str(caught.value).count("Listing was refused: without that permission, name a file or an index") == 1
    loaded = streamer.load(f"{uri.rstrip('/')}/weights.safetensors", framework="np", storage_options=options)
    assert loaded["a"].sum() == 3
