"""How many event loops read over HTTP, and how many requests each may have under way."""

from __future__ import annotations

from each_row import each_row

from streamer import Options
from streamer.core.engine import tuning
from streamer.core.engine.tuning import HttpReading, choose_http_reading
from streamer.core.options.settings import resolve

GIB = 1 << 30


@each_row(
    ("processors", "wanted_bytes", "expected"),
    [
        (1, 100 * GIB, HttpReading(1, 64)),
        (2, 100 * GIB, HttpReading(2, 64)),
        (192, 100 * GIB, HttpReading(64, 16)),
        (192, 4 * GIB, HttpReading(8, 64)),
        (192, GIB, HttpReading(4, 64)),
        (192, 1, HttpReading(4, 64)),
    ],
)
def test_loops_follow_the_processors_and_the_size(monkeypatch, processors, wanted_bytes, expected):
    monkeypatch.setattr(tuning, "processors", lambda: processors)
    assert choose_http_reading(resolve(Options()), wanted_bytes, 1000) == expected


def test_what_the_user_set_is_taken():
    settings = resolve(Options(http_reactors=64, http_in_flight=100))
    assert choose_http_reading(settings, 1, 1000) == HttpReading(64, 100)


def test_all_loops_together_ask_for_a_limited_number():
    assert choose_http_reading(resolve(Options(http_reactors=64)), 1, 1000) == HttpReading(64, 16)


def test_no_loop_is_made_without_a_block_for_it():
    assert choose_http_reading(resolve(Options(http_reactors=8)), 1, 3) == HttpReading(3, 3)
