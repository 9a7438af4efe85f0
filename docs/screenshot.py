"""Takes the picture of a load's page that docs/traces.md shows: the server pauses, then the consumer is slow.

PYTHONPATH=tests python docs/screenshot.py      # needs Chromium: make docs-packages
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from safetensors.torch import save
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer._cli import main as command_line

PICTURE = Path(__file__).with_name("traces.png")
TENSORS, PAUSED_FROM, PAUSE_S, SLOW_S = 48, 12, 0.8, 0.02


def pause(request: Request, _answer: Answer) -> None:
    """Answer as a store does, after some time; from one request on, much later."""
    time.sleep(0.05 if request.number < PAUSED_FROM else PAUSE_S)


def traced_load(trace: Path) -> None:
    """Load from the server, and take as long for the second half of the tensors as a busy program."""
    data = save({f"layers.{number:02}.weight": torch.rand(1024, 1024) for number in range(TENSORS)})
    options = streamer.Options(trace=trace, http_in_flight=4, http_reactors=2)
    with ScriptedServer(data, pause) as server, streamer.stream(server.url, options=options) as stream:
        for number, _ in enumerate(stream):
            if number > TENSORS // 2:
                time.sleep(SLOW_S)


def main() -> None:
    """Load, make the page, and photograph it."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as library:
        trace, page_file = Path(folder, "load.json"), Path(folder, "load.html")
        traced_load(trace)
        command_line(["trace", str(trace), "--html", str(page_file), "--quiet"], standalone_mode=False)
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = library.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 1190}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("body[data-drawn]")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
