"""Half a character in a URL, or of a name that is not of UTF-8, is an error of the tree and the caller's mistake."""

from __future__ import annotations

from typing import Any

import pytest
from each_row import each_row
from frames import shown_by_us

import streamer

NOBODY = "127.0.0.1:9"  # nothing listens on the port of "discard"
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"key": "k", "secret": "s", "endpoint_url": f"http://{NOBODY}"},
    "gs": {"token": "anon", "endpoint_url": f"http://{NOBODY}"},
    "az": {"account_name": "acct", "sas_token": "sv=2024&sig=x", "account_host": NOBODY},
    "hf": {"endpoint": f"http://{NOBODY}", "token": False},
}
FORMS = [
    *("s3://bucket/{}", "s3://{}/a", "s3://bucket/{}/*.safetensors", "gs://bucket/{}", "gs://{}/a", "az://c/{}"),
    *("az://{}/a", "abfss://c@acct.dfs.core.windows.net/{}", "https://acct.blob.core.windows.net/c/{}"),
    *("hf://a/b/{}", "hf://a/b@{}/x", "hf://{}/b", f"nfs://{NOBODY}/{{}}", "nfs://{}/a", f"http://{NOBODY}/{{}}"),
    *(f"http://{NOBODY}/x?{{}}", f"http://{NOBODY}/{{}}/*.safetensors", f"http://user:{{}}@{NOBODY}/x", "http://{}/x"),
    *("file:///{}", "/absent/{}", "/absent/{}/*.safetensors", "{}://x", "{}", "memory://{}", "zip://{}::memory://x"),
    f"simplecache::http://{NOBODY}/{{}}",
]
OF_UNICODE = [form for form in FORMS if form.startswith(("s3", "gs", "az", "abfss", "hf", "nfs"))]
OF_UNICODE += [f"http://user:{{}}@{NOBODY}/x", "http://{}/x"]


@each_row(("form", "letter"), [*((form, "\ud800") for form in FORMS), *((form, "\udcff") for form in OF_UNICODE)])
def test_half_a_character_in_a_url_is_the_callers_mistake_regression(form: str, letter: str) -> None:
    """Python's UnicodeEncodeError came out, or a wrong option, a broken plug-in, a malformed SAS was told of."""
    uri = form.format(letter)
    with pytest.raises(streamer.UsageError, match="half a character") as caught:
        streamer.load(uri, storage_options=OPTIONS.get(uri.partition(":")[0]))
    str(caught.value).encode()  # any log can take it


@pytest.mark.parametrize("uri", [f"http://{NOBODY}/\udcff", "/absent/\udcff", "file:///absent/\udcff"], ids=ascii)
def test_a_name_that_is_not_of_utf_8_is_asked_for(uri: str) -> None:
    with pytest.raises(streamer.StorageError):
        streamer.load(uri, options=streamer.Options(block_deadline_s=0.5))


def test_the_mistake_shows_no_secret() -> None:
    secret = "C4n4ryS3cr3tXyz"
    with pytest.raises(streamer.UsageError) as caught:
        streamer.load(f"https://user:{secret}\ud800@host/x?sig={secret}")
    assert [text for text in [str(caught.value), *shown_by_us(caught.value)] if secret in text] == []
