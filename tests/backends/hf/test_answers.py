"""Which page of the Hub's listing follows another, by its ``Link`` header (RFC 8288)."""

from __future__ import annotations

import pytest
from each_row import each_row
from huggingface_hub.utils import parse_hf_uri
from huggingface_hub.utils._validators import validate_repo_id
from hypothesis import example, given
from hypothesis import strategies as st

from streamer.backends.hf.answers import next_page
from streamer.backends.hf.client import refusal
from streamer.backends.hf.paths import parse_uri
from streamer.core import errors
from streamer.core.errors import StorageError, UsageError

TREE = f"/api/models/o/m/tree/{'5' * 40}"
MIRROR = "http://mirror:8080/api/hub/proxy"
NEXT = f"{TREE}?cursor=Zm9v%3D%3D&limit=1000"


def following(*links: str, endpoint: str = MIRROR) -> str | None:
    return next_page(links, endpoint + TREE, endpoint, "hf://o/m")


@each_row(
    "parameters",
    [
        '; rel="next"',
        "; rel=next",
        "; rel='next'",
        '; Rel="next"',
        '; rel="NEXT"',
        '; rel="last next"',
        '; title="page 2"; rel="next"',
        '; title="a, b; rel=prev"; rel="next"',
        ' ;  rel = "next" ',
        '; rel="next"; rel="last"',
    ],
)
def test_the_relation_is_found_however_it_is_written_regression(parameters):
    """Only ``; rel="next"`` right behind the target counted; any other spelling was taken for the last page."""
    assert following(f"<{MIRROR}{NEXT}>{parameters}") == MIRROR + NEXT


def test_the_next_page_is_found_among_other_links_and_in_several_headers_regression():
    first = f'<{MIRROR}{TREE}>; rel="first"'
    assert following(f'{first}, <{MIRROR}{NEXT}>; rel="next"') == MIRROR + NEXT
    assert following(first, f"<{MIRROR}{NEXT}>; rel=next") == MIRROR + NEXT


@pytest.mark.parametrize("links", [(), (f'<{MIRROR}{TREE}>; rel="prev"',), (f"<{MIRROR}/x>; rel=last; rel=next",)])
def test_a_last_page_has_no_next_one(links):
    assert following(*links) is None


@each_row(
    "link",
    ["", "<", f"{MIRROR}{NEXT}; rel=next", f"<{MIRROR}{NEXT}>; rel=", f"<{MIRROR}{NEXT}> rel=next", "<x>; rel=€"],
)
def test_a_link_that_cannot_be_parsed_is_no_last_page_regression(link):
    if not link:
        assert following(link) is None  # an empty list
        return
    with pytest.raises(StorageError, match="cannot be parsed"):
        following(link)


def test_two_links_to_next_pages_are_an_error():
    with pytest.raises(StorageError, match="several next pages"):
        following(f'<{MIRROR}{TREE}?cursor=a>; rel="next", <{MIRROR}{TREE}?cursor=b>; rel="next"')


@each_row("endpoint", [MIRROR, "https://mirror"])
@each_row("origin", ["https://huggingface.co", "http://10.0.0.1:5000/behind", ""])
def test_the_link_of_the_origin_is_asked_from_the_mirror_regression(endpoint, origin):
    assert following(f'<{origin}{NEXT}>; rel="next"', endpoint=endpoint) == endpoint + NEXT


@pytest.mark.parametrize(
    "link",
    [
        f"https://origin{NEXT.replace('o/m', 'o/other')}",
        "https://origin/next",
        f"ftp://mirror:8080/api/hub/proxy{NEXT}",
        f"https://mirror:8080{TREE}/folder?cursor=a",
    ],
)
def test_a_link_to_something_else_elsewhere_names_both_hosts_regression(link):
    with pytest.raises(StorageError, match="leads to another server") as caught:
        following(f'<{link}>; rel="next"')
    assert "http://mirror:8080/api/hub/proxy" in str(caught.value)
    assert link.partition("://")[2].partition("/")[0].partition(":")[0] in str(caught.value)
    assert "endpoint" in (caught.value.hint or "")


# --- what the Hub's answers become ----------------------------------------------------------------------------------


@each_row(
    ("status", "code", "has_token", "expected"),
    [
        (401, "GatedRepo", False, errors.AccessDeniedError),
        (403, "GatedRepo", True, errors.AccessDeniedError),
        (404, "RepoNotFound", True, errors.ObjectNotFoundError),
        (401, "RepoNotFound", True, errors.ObjectNotFoundError),
        (401, None, False, errors.ObjectNotFoundError),
        (401, None, True, errors.CredentialsError),
        (404, "RevisionNotFound", False, errors.ObjectNotFoundError),
        (404, "EntryNotFound", False, errors.ObjectNotFoundError),
        (404, None, False, errors.ObjectNotFoundError),
        (403, None, True, errors.AccessDeniedError),
        (429, None, False, errors.HttpStatusError),
        (503, None, False, errors.HttpStatusError),
    ],
)
def test_each_code_has_its_class_and_is_carried(status, code, has_token, expected):
    headers = {"x-error-message": "canary", "X-Request-Id": "R1"} | ({"x-error-code": code} if code else {})
    error = refusal(status, headers, b"canary", "hf://a/b", has_token=has_token)
    assert type(error) is expected
    assert (error.status, error.code, error.request_id) == (status, code, "R1")
    assert "canary" not in str(error)


def test_a_disabled_repository_says_so():
    headers = {"x-error-message": "Access to this resource is disabled."}
    assert "disabled" in str(refusal(403, headers, b"", "hf://a/b", has_token=True))


# --- what ``hf://`` URLs name ---------------------------------------------------------------------------------------


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
