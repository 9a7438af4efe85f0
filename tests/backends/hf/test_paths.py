"""What ``hf://`` URLs name."""

from __future__ import annotations

import pytest
from each_row import each_row
from huggingface_hub.utils import parse_hf_uri
from huggingface_hub.utils._validators import validate_repo_id
from hypothesis import example, given
from hypothesis import strategies as st

from streamer.backends.hf.paths import parse_uri
from streamer.core.errors import UsageError


@each_row(
    ("uri", "kind", "revision", "path", "root"),
    [
        ("hf://a/b", "model", "main", "", "a/b"),
        ("hf://a/b/", "model", "main", "", "a/b"),
        ("hf://models/a/b", "model", "main", "", "models/a/b"),
        ("hf://datasets/a/b/x/y.json", "dataset", "main", "x/y.json", "datasets/a/b/x/y.json"),
        ("hf://spaces/a/b@v1", "space", "v1", "", "spaces/a/b@v1"),
        ("hf://a/b@v1/x", "model", "v1", "x", "a/b@v1/x"),
        ("hf://a/b@x%2Fy/z", "model", "x/y", "z", "a/b@x%2Fy/z"),
        ("hf://a/b@refs/pr/12/z", "model", "refs/pr/12", "z", "a/b@refs/pr/12/z"),
        ("hf://a/b@refs/convert/parquet", "model", "refs/convert/parquet", "", "a/b@refs/convert/parquet"),
        ("hf://a/b@refs%2Fpr%2F1/z", "model", "refs/pr/1", "z", "a/b@refs%2Fpr%2F1/z"),
        ("hf://a/b/x@1.bin", "model", "main", "x@1.bin", "a/b/x@1.bin"),
        ("hf://a/b/100%.bin", "model", "main", "100%.bin", "a/b/100%.bin"),
    ],
)
def test_a_url_names_kind_repository_revision_and_path_as_huggingface_hub_does(uri, kind, revision, path, root):
    found = parse_uri(uri)
    assert (found.kind, found.repository, found.revision, found.path) == (kind, "a/b", revision, path)
    assert found.root == root
    theirs = parse_hf_uri(uri)
    assert (theirs.type, theirs.id, theirs.revision or "main", theirs.path_in_repo) == (kind, "a/b", revision, path)


@each_row(
    "uri",
    [
        "hf://",
        "hf://gpt2",
        "hf://gpt2/",
        "hf://datasets/a",
        "hf://a/b@",
        "hf://a/b@/x",
        "hf://a//b",
        "hf://a/b/../c",
        "hf://a/b/./c",
        "hf://a/b/c//d",
        "hf://a/b@../x",
        "hf://a/b@..%2F..%2Fetc/x",
        "hf://a b/c",
        "hf://a/b\0",
        "hf://user:password@a/b",
        "hf://../..",
        "hf://a/..",
        "hf://../b/x",
        "hf://models/../b",
        "hf://-a/b",
        "hf://a/b-",
        "hf://a/.b",
        "hf://a/b--c",
        "hf://a/b..c",
        "hf://a/b.git",
    ],
)
def test_what_names_no_place_in_a_repository_is_refused(uri):
    with pytest.raises(UsageError) as caught:
        parse_uri(uri)
    assert "password" not in str(caught.value)


@given(st.text(st.sampled_from("ab0_.-g/"), max_size=8), st.text(st.sampled_from("ab0_.-git"), max_size=8))
@example("..", "..")
@example("a", "b.git")
def test_a_name_that_the_library_refuses_is_refused_regression(owner, name):
    """Its own error came out, once the Hub had answered for `../..`."""
    try:
        parse_uri(f"hf://{owner}/{name}")
    except UsageError:
        return
    validate_repo_id("/".join(f"{owner}/{name}".strip("/").split("/")[:2]))
