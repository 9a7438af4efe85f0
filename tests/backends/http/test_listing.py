"""Which links of an index page are files of its folder."""

from __future__ import annotations

from each_row import each_row

from streamer.backends.http.index_page import names_in
from streamer.core.options.limits import Limits

URL = "https://host:8443/models/small/"


@each_row(
    ("link", "name"),
    [
        ("a.safetensors", "a.safetensors"),
        ("./a.safetensors", "a.safetensors"),
        ("/models/small/a.safetensors", "a.safetensors"),
        ("https://host:8443/models/small/a.safetensors", "a.safetensors"),
        ("a%20b.bin", "a%20b.bin"),
        ("a b.bin", "a%20b.bin"),
        ("a&amp;b.bin", "a&b.bin"),
        ("a.bin#part", "a.bin"),
    ],
)
def test_a_direct_child_is_found(link, name):
    assert names_in(f'<pre><a href="{link}">x</a>', URL, Limits()) == [name]


@each_row(
    "link",
    [
        "../",
        "..",
        "./",
        "",
        "sub/",
        "sub/a.bin",
        "/a.bin",
        "/models/a.bin",
        "/models/smaller/a.bin",
        "?C=N;O=D",
        "a.bin?C=N",
        "https://host/models/small/a.bin",
        "http://host:8443/models/small/a.bin",
        "https://evil/models/small/a.bin",
        "//evil/models/small/a.bin",
        "https://host:port/models/small/a.bin",
        "mailto:a@host",
        "javascript:void(0)",
    ],
)
def test_a_link_to_another_place_is_no_child(link):
    assert names_in(f'<a href="{link}">x</a>', URL, Limits()) == []


def test_names_are_sorted_and_listed_once():
    page = '<A HREF="b">b</A> <a title="x" href=\'a\'>a</a> <a name="n"></a> <a href=b>b</a> <img src="c">'
    assert names_in(page, URL, Limits()) == ["a", "b"]


def test_a_broken_page_has_no_names():
    assert names_in('<a href="', URL, Limits()) == []
