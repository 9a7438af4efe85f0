"""The page of a load in a real browser: it fetches nothing, fits its window, and is used by mouse and keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import load_traces
import pytest

from streamer._commands import traces

pytest.importorskip("playwright.sync_api", reason="pages are opened by make test-docs alone")
WIDTHS = (400, 1200)
SCHEMES = ("light", "dark")
PIXEL = """([x, y]) => { const ratio = devicePixelRatio;
  return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3); }"""


@contextmanager
def opened(
    browser: Any, folder: Path, trace: dict[str, Any], width: int = 1200, scheme: str = "light"
) -> Iterator[Any]:
    """Open the page of a trace, and fail if it fetched something, or its script failed."""
    read = traces.parsed(load_traces.write(folder / "load.json", trace).read_bytes(), "load.json")
    (folder / "load.html").write_text(traces.page(read, traces.summary(read)))
    faults: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda asked: faults.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    page.goto((folder / "load.html").as_uri())
    page.wait_for_selector("body[data-drawn]")
    yield page
    page.close()
    assert faults == []


def drawn(page: Any, press: Any) -> None:
    """Do something, and wait until the page has drawn what follows from it."""
    before = page.evaluate("document.body.dataset.drawn")
    press()
    page.wait_for_selector(f"body:not([data-drawn='{before}'])")


def shown(page: Any) -> list[float]:
    """Return the microseconds that the pictures show."""
    return page.evaluate("[view.from, view.to]")  # type: ignore[no-any-return]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_its_window_and_can_be_read(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    trace = load_traces.trace(name="a" * 300, uri=load_traces.NASTY, dropped_events=12)
    with opened(browser, tmp_path, trace, width, scheme) as page:
        for each in page.query_selector_all("summary"):
            each.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        assert "12 events" in page.inner_text("#dropped")
        paint = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paint == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_colors_of_pictures_differ_from_their_ground(browser: Any, tmp_path: Path, scheme: str) -> None:
    with opened(browser, tmp_path, load_traces.trace(), scheme=scheme) as page:
        ratios = page.evaluate("""() => {
          const light = (text) => { const n = parseInt(text.trim().slice(1), 16);
            const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            return 0.2126 * part(n >> 16) + 0.7152 * part((n >> 8) & 255) + 0.0722 * part(n & 255); };
          const style = getComputedStyle(document.documentElement);
          const of = (key) => light(style.getPropertyValue("--" + key.replaceAll(" ", "-")));
          const ground = of("field");
          return Object.fromEntries([...causes, "mark", "focus"].map((key) => {
            const a = of(key); return [key, (Math.max(a, ground) + 0.05) / (Math.min(a, ground) + 0.05)]; })); }""")
    assert {key: ratio for key, ratio in ratios.items() if ratio < 3} == {}


def test_it_says_first_what_bounded_the_load(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, load_traces.trace()) as page:
        assert page.inner_text("#bound") == "Bound by: store 71 %, consumer 20 %"
        assert page.inner_text("#advice") == "What would help: more requests in flight: http_in_flight=32"
        assert page.title() == "s3://bucket/llama: a load"
        assert len(page.query_selector_all("#slowest tbody tr")) == 10
        assert "first byte" in page.inner_text("#slowest")


def test_texts_stay_texts(browser: Any, tmp_path: Path) -> None:
    nasty = load_traces.NASTY
    with opened(browser, tmp_path, load_traces.trace(name=nasty, uri=nasty, advice=nasty)) as page:
        assert page.evaluate("summary.uri") == nasty
        assert page.evaluate("document.getElementById('name').textContent") == nasty
        assert page.evaluate("document.querySelector('#slowest tbody td:nth-child(5)').textContent") == nasty
        assert len(page.query_selector_all("script")) == 2


def test_keys_zoom_move_and_choose(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, load_traces.trace()) as page:
        end = shown(page)[1]
        drawn(page, lambda: page.focus("#lanes"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.id")
        assert outline == "solidlanes"
        drawn(page, lambda: page.keyboard.press("+"))
        assert shown(page) == [end / 4, end * 3 / 4]
        drawn(page, lambda: page.keyboard.press("ArrowLeft"))
        assert shown(page)[0] == pytest.approx(end * 0.15)
        drawn(page, lambda: page.keyboard.press("ArrowDown"))
        drawn(page, lambda: page.keyboard.press("n"))
        assert page.inner_text("#chosen").startswith("requests 0: request model-1.safetensors")
        first = page.inner_text("#chosen")
        drawn(page, lambda: page.keyboard.press("n"))
        assert page.inner_text("#chosen") != first
        drawn(page, lambda: page.keyboard.press("p"))
        assert page.inner_text("#chosen") == first
        drawn(page, lambda: page.keyboard.press("0"))
        assert shown(page) == [0, end]


def test_mouse_and_buttons_zoom_and_move(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, load_traces.trace()) as page:
        end = shown(page)[1]
        drawn(page, lambda: page.click("button[data-key='+']"))
        assert shown(page) == [end / 4, end * 3 / 4]
        box = page.query_selector("#lanes").bounding_box()
        page.mouse.move(box["x"] + 600, box["y"] + 60)
        page.mouse.down()
        drawn(page, lambda: page.mouse.move(box["x"] + 700, box["y"] + 60))
        page.mouse.up()
        assert shown(page)[0] < end / 4
        span = shown(page)[1] - shown(page)[0]
        page.keyboard.down("Control")
        drawn(page, lambda: page.mouse.wheel(0, -100))
        page.keyboard.up("Control")
        assert shown(page)[1] - shown(page)[0] < span
        drawn(page, lambda: page.mouse.move(box["x"] + 500, box["y"] + 22 + 5))
        assert page.inner_text("#chosen").startswith("consumer model-1.safetensors: ")


def test_a_lane_is_as_high_as_its_thread_was_busy(browser: Any, tmp_path: Path) -> None:
    events = [
        load_traces.event("whole", "read", 0, 1_000_000, 1, bytes=10),
        *(load_traces.event("half", "read", at, 500, 2, bytes=10) for at in range(0, 1_000_000, 1000)),
    ]
    with opened(browser, tmp_path, {"traceEvents": events, "otherData": {"product": "streamer"}}) as page:
        ground, full = page.evaluate(PIXEL, [600, 2]), page.evaluate(PIXEL, [600, 24])
        assert full != ground
        assert page.evaluate(PIXEL, [600, 22 + 18 + 2]) == ground  # of the second lane, only the lower half is filled
        assert page.evaluate(PIXEL, [600, 22 + 18 + 13]) == full


def test_each_picture_has_a_table(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, load_traces.trace()) as page:
        for name, rows, first in (
            ("lanes", 8 + 2 + 2, ["consumer model-1.safetensors", "wait", "20"]),
            ("speed", 100, ["0 \u00b5s"]),
            ("when", 100, ["0 \u00b5s", "100 %"]),
        ):
            page.click(f"details[data-table='{name}'] summary")
            page.wait_for_selector(f"details[data-table='{name}'] tbody tr")
            cells = f"details[data-table='{name}'] tbody tr"
            assert len(page.query_selector_all(cells)) == rows
            found = page.evaluate(f'[...document.querySelector("{cells}").children].map((cell) => cell.textContent)')
            assert found[: len(first)] == first


def test_a_consumer_is_a_bound_only_while_nobody_reads(browser: Any, tmp_path: Path) -> None:
    events = [
        load_traces.event("a", "read", 0, 1_000_000, 1, bytes=10),
        load_traces.event("consumer", "consumer", 0, 2_000_000, 2),
    ]
    with opened(browser, tmp_path, {"traceEvents": events, "otherData": {"product": "streamer"}}) as page:
        found = page.evaluate("shownShares.map((row) => [row[causes.indexOf('disk')], row[CONSUMER]])")
    assert found == [[1, 0]] * 50 + [[0, 1]] * 50


def test_a_hundred_thousand_events_are_drawn(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, load_traces.trace(100_000, 40), 400) as page:
        assert page.evaluate("count") >= 100_000
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        drawn(page, lambda: page.click("button[data-key='+']"))
        drawn(page, lambda: page.click("button[data-key='ArrowRight']"))


def test_it_can_be_printed(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, load_traces.trace(), scheme="dark") as page:
        drawn(page, lambda: page.emulate_media(media="print", color_scheme="dark"))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf().startswith(b"%PDF")
