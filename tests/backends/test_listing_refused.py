"""If listing is refused, the error says so, and names what works without that permission."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from uploads import UNLISTED, uploaded_unlisted

import streamer
from streamer._check import check

pytestmark = pytest.mark.server


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
