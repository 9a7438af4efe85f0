"""The built site in a real browser: every page fits its window, is whole, and can be read; search finds a page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest
from pages import ROOT

pytest.importorskip("playwright.sync_api", reason="the site is built and opened by make test-docs alone")
SITE = ROOT / "build" / "site"
WIDTHS = (400, 1200)
READ = ("index.html", "start.html", "reference/functions.html", "errors.html")  # one page of each look

LOOK = """() => ({
  over: document.documentElement.scrollWidth - window.innerWidth,
  broken: [...document.images].filter(image => !image.naturalWidth).map(image => image.src),
  levels: [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map(title => Number(title.tagName[1])),
  links: [...document.links].map(link => link.href),
  ids: [...document.querySelectorAll("[id]")].map(element => element.id),
})"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    assert (SITE / "index.html").is_file(), "build it first: make docs"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != "404.html")


def broken(links: dict[str, str], anchors: dict[str, set[str]]) -> list[str]:
    """Describe the links, with the page that has each, that lead to no page or to no part of one."""
    faults = []
    for link, name in links.items():
        target, anchor = urldefrag(link)
        target = target + "index.html" if target.endswith("/") else target
        if target not in anchors or (anchor and anchor not in anchors[target]):
            faults.append(f"{name}: {link} leads nowhere")
    return faults


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_whole_and_fits_its_window(width: int, address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    faults: list[str] = []
    links: dict[str, str] = {}
    anchors: dict[str, set[str]] = {}
    page.on(
        "console", lambda message: faults.append(f"{page.url}: {message.text}") if message.type == "error" else None
    )
    page.on(
        "response", lambda answer: faults.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None
    )
    page.on(
        "request", lambda asked: faults.append(f"fetched {asked.url}") if not asked.url.startswith(address) else None
    )
    for name in PAGES:
        page.goto(address + name)
        seen = page.evaluate(LOOK)
        if seen["over"] > 0:
            faults.append(f"{name}: {seen['over']} pixels wider than {width}")
        faults += [f"{name}: no picture at {source}" for source in seen["broken"]]
        pairs = zip([0, *seen["levels"]], seen["levels"], strict=False)
        faults += [
            f"{name}: a heading of level {after} below {before}" for before, after in pairs if after > before + 1
        ]
        anchors[address + name] = set(seen["ids"])
        links |= {urljoin(address + name, link): name for link in seen["links"] if link.startswith(address)}
    faults += broken(links, anchors)
    page.close()
    assert not faults
    assert len(PAGES) > 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(scheme: Any, address: str, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
    for name in READ:
        page.goto(address + name)
        found = axe.run(page, options={"runOnly": ["color-contrast", "image-alt", "link-name"]}).response
        assert not [(name, fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]
        assert found["passes"]
    page.close()


def test_search_finds_a_page_by_its_words(address: str, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(address)
    page.keyboard.press("/")
    page.keyboard.type("GPUDirect", delay=20)
    for _ in range(60):  # the list of hits, which no selector reaches, opens when the worker has read its index
        page.keyboard.press("Enter")
        page.wait_for_timeout(500)
        if page.url.partition("#")[0] != address:
            break
    assert "GPUDirect" in page.title()
    page.close()
