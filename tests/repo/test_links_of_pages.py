"""Links between the pages lead somewhere; promises, events and attacks name the tests that show them."""

from __future__ import annotations

import re
from pathlib import Path

from faults.outage_report import rows_in, table
from faults.outages import OUTAGES
from pages import ROOT, text_of

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "extras").rglob("*.md")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks, which hold things that look like links."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.*?)\s*$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in LINK.findall(prose(page)):
            target, _, anchor = link.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = (page.parent / target).resolve() if target else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_the_map_leads_to_every_page() -> None:
    links = LINK.findall(prose(ROOT / "docs/README.md"))
    targets = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in links}
    pages = {page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"}
    assert pages - targets == set()


# --- tables that name tests: that the tests exist is checked in ``test_house.py`` ------------------------------------
PROMISES = re.split(r"^\d+\. ", text_of("docs/promises.md"), flags=re.MULTILINE)[1:]
NAMED = re.compile(r"`([\w/.]+\.(?:py|cc))::([^`]+)`")


def test_each_of_ten_promises_names_a_test() -> None:
    assert len(PROMISES) == 10
    assert all(NAMED.search(promise) for promise in PROMISES)


def rows_of(text: str) -> list[str]:
    """Return the rows of tables without their heads."""
    return [line for line in text.splitlines() if line.startswith("| ") and not line.endswith(" test |")]


def test_each_row_of_security_names_a_test() -> None:
    rows = rows_of(text_of("docs/security.md"))
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row)] == []


RELIABILITY = text_of("docs/reliability.md")


def test_every_event_of_reliability_names_a_test() -> None:
    section = RELIABILITY.partition("## What may happen under a load, and the test that shows it\n")[2]
    rows = [row for row in rows_of(section.partition("\n## ")[0]) if not row.startswith("| event")]
    assert len(rows) >= 25
    assert [row for row in rows if not NAMED.search(row)] == []


def test_every_outage_is_on_the_page() -> None:
    rows = [f"| `{name}` | {outage.summary} |\n" for name, outage in OUTAGES.items()]
    assert [row for row in rows if row not in RELIABILITY] == []


def test_the_table_of_outages_is_what_was_measured() -> None:
    assert table(rows_in(ROOT / "docs/benchmarks/outages.jsonl")) in RELIABILITY
