"""Which files are read past the page cache, and by how many threads."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer import Options
from streamer.core.engine import tuning
from streamer.core.engine.tuning import (
    COLD_FILE_THREADS,
    MOST_WARM_FILE_THREADS,
    REMOTE_FILE_THREADS,
    choose_file_reading,
)
from streamer.core.options.machine import processors
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource, HttpSource

SIZE = 1 << 30
MANY = 128
FEW = processors() + 1


@pytest.fixture
def chosen(monkeypatch):
    """Choose for files named after what the page cache holds of them."""
    monkeypatch.setattr(tuning, "cached_fraction", lambda path, size_bytes, files: float(path.removeprefix("/")))

    def choose(*paths, is_remote=False, needs_cache=False, wanted_bytes=SIZE, blocks=MANY, **options):
        sources = [(FileSource(path, is_remote=is_remote, needs_cache=needs_cache), SIZE) for path in paths]
        return choose_file_reading(sources, resolve(Options(**options)), wanted_bytes, blocks)

    return choose


def test_what_is_in_the_page_cache_is_read_from_there_by_few_threads(chosen):
    assert chosen("/1.0", "/0.9") == tuning.FileReading(FEW)


def test_a_machine_of_many_processors_is_not_filled_with_threads(chosen, monkeypatch):
    monkeypatch.setattr(tuning, "processors", lambda: 192)
    assert chosen("/1.0", blocks=10_000) == tuning.FileReading(MOST_WARM_FILE_THREADS)
    assert chosen("/0.0", blocks=10_000).threads == MOST_WARM_FILE_THREADS


def test_cold_files_are_read_directly_by_many_threads(chosen):
    assert chosen("/0.0", "/0.00") == tuning.FileReading(COLD_FILE_THREADS, frozenset({"/0.0", "/0.00"}))


def test_the_rest_of_a_partly_cached_file_is_read_directly(chosen):
    direct, partly_cached = frozenset({"/0.0", "/0.5"}), frozenset({"/0.5"})
    assert chosen("/0.0", "/0.5", "/0.9") == tuning.FileReading(COLD_FILE_THREADS, direct, partly_cached)


def test_one_cold_file_among_warm_ones_is_read_past_it_alone(chosen):
    assert chosen("/0.0", "/1.0", "/1.00", "/0.9") == tuning.FileReading(COLD_FILE_THREADS, frozenset({"/0.0"}))
    assert chosen("/0.1", "/1.0", "/1.00", "/0.9") == tuning.FileReading(FEW, frozenset({"/0.1"}), frozenset({"/0.1"}))


def test_little_is_read_through_the_page_cache_without_a_look(chosen):
    assert chosen("/0.0", wanted_bytes=1 << 20, blocks=1) == tuning.FileReading(1)
    assert chosen("/0.0", wanted_bytes=1 << 20, blocks=100) == tuning.FileReading(FEW)


def test_headers_of_many_files_are_not_worth_a_look(chosen):
    paths = [f"/not a fraction {number}" for number in range(1000)]
    assert chosen(*paths, wanted_bytes=1000 << 18, blocks=1000) == tuning.FileReading(FEW)


def test_a_file_system_that_needs_the_page_cache_keeps_it(chosen):
    assert chosen("/0.0", needs_cache=True) == tuning.FileReading(COLD_FILE_THREADS)
    assert chosen("/0.0", needs_cache=True, direct_io=True).direct_paths == {"/0.0"}


def test_a_file_server_is_not_asked_and_keeps_its_cache(chosen):
    assert chosen("/0.0", is_remote=True) == tuning.FileReading(REMOTE_FILE_THREADS)


def test_what_the_user_set_is_taken(chosen):
    assert chosen("/1.0", direct_io=True, file_threads=5) == tuning.FileReading(5, frozenset({"/1.0"}), is_shared=False)
    assert chosen("/0.0", direct_io=False) == tuning.FileReading(COLD_FILE_THREADS, is_shared=False)
    assert chosen("/0.0", is_remote=True, direct_io=True).direct_paths == {"/0.0"}


def test_no_file_is_examined_if_all_options_are_set(chosen):
    assert chosen("/not a fraction", direct_io=True, file_threads=5).threads == 5


def test_objects_that_are_no_files_do_not_count():
    sources = [(HttpSource(url="http://example.com/x"), SIZE)]
    assert choose_file_reading(sources, resolve(None), SIZE, MANY).direct_paths == frozenset()


def test_gpudirect_is_left_to_the_library_where_much_is_wanted(chosen):
    much = tuning.LEAST_BYTES_FOR_GPUDIRECT
    assert chosen("/0.0", wanted_bytes=much).gpudirect is None
    assert chosen("/0.0", wanted_bytes=much - 1).gpudirect is False
    assert chosen("/0.0", wanted_bytes=1, gpudirect=True).gpudirect is True
    assert chosen("/0.0", wanted_bytes=much, gpudirect=False).gpudirect is False


@each_row(("processors", "threads"), [(1, 2), (2, 3), (4, 5), (8, 5), (12, 8), (16, 12), (20, 16), (192, 16)])
def test_readers_for_a_device_leave_processors_to_the_copier_and_the_consumer(monkeypatch, processors, threads):
    monkeypatch.setattr(tuning, "processors", lambda: processors)
    assert warm_threads(devices=1) == threads


def test_several_devices_have_more_readers(monkeypatch):
    monkeypatch.setattr(tuning, "processors", lambda: 192)
    assert warm_threads(devices=2) == MOST_WARM_FILE_THREADS
    assert warm_threads(devices=0) == MOST_WARM_FILE_THREADS


@pytest.mark.parametrize(
    ("processors", "sharers", "threads"), [(16, 8, 2), (16, 4, 3), (2, 4, 1), (2, 8, 1), (4, 2, 3)]
)
def test_neighbours_divide_the_readers(monkeypatch, processors, sharers, threads):
    monkeypatch.setattr(tuning, "processors", lambda: processors)
    assert warm_threads(devices=1, sharers=sharers) == threads


def warm_threads(**who):
    sources = [(FileSource("/a"), SIZE)]
    return choose_file_reading(sources, resolve(Options(direct_io=False)), 1, MANY, **who).threads
