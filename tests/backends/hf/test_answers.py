"""Which page of the Hub's listing follows another, by its ``Link`` header (RFC 8288)."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer.backends.hf.answers import next_page
from streamer.core.errors import StorageError

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
