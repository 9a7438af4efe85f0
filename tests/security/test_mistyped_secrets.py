"""What was mistyped shows no secret either: storage options that are no mapping, URLs in quotes or in a `Path`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each_row import each_row
from shown import shown_by

import streamer

SECRET = "C4n4ryS3cr3tXyz"
WHOLE = f"http://user:{SECRET}@127.0.0.1:9/x.safetensors?sig={SECRET}"

OPTIONS: dict[str, Any] = {
    "JSON": f'{{"secret": "{SECRET}"}}',
    "bytes": SECRET.encode(),
    "pairs": [("secret", SECRET)],
    "texts": [SECRET],
    "set": {SECRET},
}
URIS: dict[str, Any] = {
    "a space before it": f" {WHOLE}",
    "quotes": f'"{WHOLE}"',
    "a Path": Path(WHOLE),
    "no scheme": WHOLE.removeprefix("http:"),
    "a list in a list": [[WHOLE]],
    "a tuple in a list": [(WHOLE, "x")],
}


def shown(call: Any) -> str:
    with pytest.raises((streamer.UsageError, streamer.OptionError)) as caught:
        call()
    return "".join(shown_by(caught.value))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_storage_options_of_a_wrong_type_are_not_shown_regression(options: Any) -> None:
    assert SECRET not in shown(lambda: streamer.load("s3://bucket/x", storage_options=options))


@each_row("uri", URIS.values())
def test_a_url_that_something_was_done_to_is_refused_and_not_shown_regression(uri: Any) -> None:
    """It was taken for the path of a file, and shown whole."""
    assert SECRET not in shown(lambda: streamer.load(uri))


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(tmp_path / "a:" / "b")
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(" no such file")


@pytest.mark.parametrize("mark", ["?token=", "#"])
def test_an_endpoint_of_s3_holds_no_query(mark: str) -> None:
    options = {"endpoint_url": f"http://127.0.0.1:9/{mark}{SECRET}", "key": "k", "secret": "s"}
    assert SECRET not in shown(lambda: streamer.load("s3://bucket/x", storage_options=options))


@pytest.mark.parametrize("uri", [f"u:{SECRET}@127.0.0.1:9/x", f"u:{SECRET}@host/x?sig={SECRET}"])
def test_a_url_whose_scheme_was_forgotten_is_no_path(uri: str) -> None:
    assert SECRET not in shown(lambda: streamer.load(uri))
