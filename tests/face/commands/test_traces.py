"""``streamer trace``: the summary of a trace, its page, and what is no trace."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import load_traces
import pytest
from click.testing import CliRunner
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from servers.scripted_http import ScriptedServer

from streamer._cli import main
from streamer._commands import traces
from streamer.core.errors import FormatError


def run(*words: object) -> Any:
    result = CliRunner().invoke(main, ["trace", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def load(tmp_path: Path) -> Path:
    return load_traces.write(tmp_path / "load.json", load_traces.trace())


def data_of(page: str) -> Any:
    """Return the data of a page."""
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>", maxsplit=1)[0])


def test_it_says_what_bounded_the_load_and_what_would_help(load: Path) -> None:
    lines = run(load).stdout.splitlines()
    assert lines[:3] == [
        "s3://bucket/llama: 8.00 MB in 2.00 s, 4.00 MB/s",
        "bound by: store 71 %, consumer 20 %",
        "what would help: more requests in flight: http_in_flight=32",
    ]
    assert ["consumer", "20", "0.400", "-"] in [line.split() for line in lines]
    assert lines[-2:] == [
        "outage: 1, the first at 0.900 s: server model-1.safetensors",
        "retry: 1, the first at 0.910 s: status 503",
    ]


def test_the_slowest_requests_have_their_reasons(tmp_path: Path) -> None:
    events = [load_traces.request(number * 1000, 100 + number, 1) for number in range(20)]
    slow = {"first_byte": 10, "connect": 899_000, "attempt": 3, "status": 503, "connection_reused": False}
    events.append(load_traces.request(50, 900_000, 1, **slow, error="SlowDown"))
    content = {"traceEvents": events, "otherData": load_traces.ABOUT}
    found = json.loads(run(load_traces.write(tmp_path / "load.json", content), "--json").stdout)
    assert len(found["slowest"]) == 10
    assert found["slowest"][0]["reason"] == "connect 0.899 s, attempt 3, status 503, new connection, SlowDown"
    assert found["slowest"][1]["seconds"] == 119e-6
    assert found["kinds"] == [
        {"kind": "request", "events": 21, "seconds": pytest.approx(0.90219), "bytes": 21 * 64_000}
    ]


def test_without_requests_the_slowest_reads_are_shown(tmp_path: Path) -> None:
    events = [load_traces.event("a.safetensors", "read", 0, 5_000_000, 1, bytes=10, offset=7)]
    content = {"traceEvents": events, "otherData": load_traces.ABOUT}
    found = run(load_traces.write(tmp_path / "load.json", content)).stdout
    assert ["5.000", "0.000", "10.0", "B", "7", "a.safetensors", "read"] in [
        line.split() for line in found.splitlines()
    ]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    content = load_traces.trace(dropped_events=12)
    content["traceEvents"] += [{"ph": "C", "name": "memory", "ts": 1}] * 2
    path = load_traces.write(tmp_path / "load.json", content)
    said = "12 events did not fit into the trace, and no sum counts them; 2 events of other forms (C) not shown"
    assert run(path).stdout.splitlines()[-1] == said
    assert data_of(run(path, "--html", "-").stdout)["summary"]["missing"] == said


def test_a_page_needs_no_other_file_and_replaces_an_older_one_when_complete(load: Path, tmp_path: Path) -> None:
    page = tmp_path / "load.html"
    page.write_text("older")
    before = page.stat().st_ino
    assert run(load, "--html", page, "--quiet").stdout == f"{page}\n"
    text = page.read_text(encoding="ascii")
    assert page.stat().st_ino != before  # a new file under the name: a reader has the older one, or this
    assert [text.count(word) for word in (" src=", "@import", "https://", "url(", "fetch(", "import(")] == [0] * 6
    assert text.count("http://") == text.count('"http://www.w3.org/2000/svg"') == 1  # a name, which nobody fetches
    assert text.count("<link") == text.count('<link rel="icon" href="data:,">') == 1
    assert run(load, "--html", "-").stdout == f"{text}\n"
    assert sorted(os.listdir(tmp_path)) == ["load.html", "load.json"]


def test_the_events_of_a_page_are_those_of_the_trace(load: Path) -> None:
    load_traces.write(load, load_traces.trace(200, 12))
    data = data_of(run(load, "--html", "-").stdout)
    assert data["lanes"] == ["consumer model-1.safetensors", *(f"requests {number}" for number in range(12))]
    assert len(data["columns"]["begin"]) == 200 + 50 + 40
    kinds = [data["kinds"][number] for number in data["columns"]["kind"]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "request": 200,
        "verify": 50,
        "wait": 20,
        "consumer": 20,
    }
    assert sum(data["columns"]["us"]) == sum(
        each["dur"] for each in json.loads(load.read_text())["traceEvents"] if each["ph"] == "X"
    )


def test_times_count_from_the_first_event(tmp_path: Path) -> None:
    events = [load_traces.event("a", "read", 5_000_000_000 + at, 7, 1) for at in (30, 0)]
    events.append({"ph": "i", "name": "outage", "ts": 5_000_000_010, "pid": 1, "tid": 1})
    path = load_traces.write(tmp_path / "load.json", {"traceEvents": events, "otherData": load_traces.ABOUT})
    data = data_of(run(path, "--html", "-").stdout)
    assert (data["columns"]["begin"], data["instants"]) == ([0, 30], [10])


def test_each_load_of_a_trace_is_listed(tmp_path: Path) -> None:
    loads = [{**load_traces.ABOUT, "uri": f"s3://bucket/{name}"} for name in "ab"]
    path = load_traces.write(tmp_path / "load.json", load_traces.trace(processes=[{"loads": loads}]))
    assert "s3://bucket/b: 8.00 MB in 2.00 s, 4.00 MB/s: bound by: store 71 %, consumer 20 %" in run(path).stdout
    assert [each["uri"] for each in json.loads(run(path, "--json").stdout)["loads"]] == [
        "s3://bucket/a",
        "s3://bucket/b",
    ]


def test_lanes_of_several_processes_have_their_names(tmp_path: Path) -> None:
    events = [load_traces.event("a", "read", 0, 5, 1, pid) for pid in (1, 2)]
    events.append({"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "rank 1"}})
    path = load_traces.write(tmp_path / "load.json", {"traceEvents": events, "otherData": load_traces.ABOUT})
    assert data_of(run(path, "--html", "-").stdout)["lanes"] == ["process 1: thread 1", "rank 1: thread 1"]


def test_texts_of_a_trace_stay_texts(tmp_path: Path) -> None:
    nasty = load_traces.NASTY
    path = load_traces.write(tmp_path / "load.json", load_traces.trace(name=nasty, uri=nasty, advice=nasty))
    page = run(path, "--html", "-").stdout
    assert page.isascii()
    assert page.count("<script") == page.count("</script>") == 2
    data = data_of(page)
    assert (data["summary"]["uri"], data["summary"]["slowest"][1][4]) == (nasty, nasty)
    assert "\\n" in run(path).stdout.splitlines()[0]


@each_row(
    ("content", "code", "said"),
    [
        (b"", 65, "the file is empty"),
        (b" \n", 65, "the file is empty"),
        (b"\xff\xfe", 65, "no JSON"),
        (b"hello", 65, "no JSON"),
        (b"[" * 100_000, 65, "no JSON"),
        (json.dumps(load_traces.trace()).encode()[:5000], 65, "or was cut off"),
        (b"[]", 65, "no trace of a load of streamer"),
        (b'{"traceEvents": []}', 65, "no trace of a load of streamer. "),
        (b'{"traceEvents": [], "otherData": {"product": "other"}}', 65, "Perfetto opens others"),
        (b'{"traceEvents": [], "otherData": {"product": "streamer"}}', 65, "holds no event"),
        (b'{"otherData": {"product": "streamer"}}', 65, "a part is missing"),
        (b'{"traceEvents": 3, "otherData": {"product": "streamer"}}', 65, "of another type"),
        (b'{"traceEvents": [{"ph": "X"}], "otherData": {"product": "streamer"}}', 65, "'ts'"),
        (b'{"traceEvents": [], "otherData": {"product": "streamer", "bytes": "5"}}', 65, "'bytes' is '5'"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, code: int, said: str) -> None:
    path, page = tmp_path / "load.json", tmp_path / "load.html"
    path.write_bytes(content)
    page.write_text("older")
    result = run(path, "--html", page, "--json")
    assert (result.exit_code, page.read_text()) == (code, "older")
    assert said in json.loads(result.stdout)["message"]


def test_a_trace_without_the_end_of_a_load_says_so_regression(tmp_path: Path) -> None:
    content = {"traceEvents": [load_traces.request(0, 1_500_000, 1)], "otherData": {"product": "streamer"}}
    path = load_traces.write(tmp_path / "load.json", content)
    assert run(path).stdout.splitlines()[0] == "no load has ended: the last event at 1.50 s"
    assert data_of(run(path, "--html", "-").stdout)["summary"]["uri"] == "no load has ended"


def test_a_load_that_was_not_complete_is_marked_regression(tmp_path: Path) -> None:
    path = load_traces.write(tmp_path / "load.json", load_traces.trace(is_complete=False, error="it broke"))
    assert run(path).stdout.splitlines()[:2] == [
        "s3://bucket/llama: 8.00 MB in 2.00 s, 4.00 MB/s, not complete",
        "bound by: store 71 %, consumer 20 %; failed: it broke",
    ]
    assert json.loads(run(path, "--json").stdout)["is_complete"] is False


def test_of_many_loads_the_longest_are_listed_regression(tmp_path: Path) -> None:
    loads = [{**load_traces.ABOUT, "uri": f"s3://bucket/{number}", "seconds": number} for number in range(100)]
    path = load_traces.write(tmp_path / "load.json", load_traces.trace(processes=[{"loads": loads}]))
    lines = [line for line in run(path).stdout.splitlines() if line.startswith("s3://bucket/")]
    assert len(lines) == 1 + traces.SHOWN_LOADS
    assert lines[1].startswith("s3://bucket/99: ")
    assert len(json.loads(run(path, "--json").stdout)["loads"]) == 100


def test_a_reason_names_no_phase_that_took_no_time_regression(tmp_path: Path) -> None:
    none = {**dict.fromkeys(traces.PHASES, 0), "status": None}
    events = [load_traces.request(0, 900_000, 1, **none)]
    path = load_traces.write(tmp_path / "load.json", {"traceEvents": events, "otherData": load_traces.ABOUT})
    assert json.loads(run(path, "--json").stdout)["slowest"][0]["reason"] == "request"


def test_a_page_is_written_into_a_fifo_and_through_a_link_regression(load: Path, tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link.html"
    os.mkfifo(fifo)
    link.symlink_to("load.html")
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(fifo.read_text)
        assert run(load, "--html", fifo).exit_code == 0
    assert page.result() == run(load, "--html", "-").stdout.removesuffix("\n")
    assert run(load, "--html", link).exit_code == 0
    assert (link.is_symlink(), (tmp_path / "load.html").read_text()) == (True, page.result())
    for name in ("", "s3://bucket/load.html"):
        assert (run(load, "--html", name).exit_code, "a file of this machine" in run(load, "--html", name).stderr) == (
            2,
            True,
        )


def test_files_that_cannot_be_read_or_written_are_named(load: Path, tmp_path: Path) -> None:
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(2_000_000_000)
    (tmp_path / "folder").mkdir()
    for words, code, said in (
        ([tmp_path / "absent.json"], 66, "absent.json: No such file"),
        ([tmp_path / "huge.json"], 65, "the file has 2.00 GB"),
        ([load, "--html", load], 2, "would replace the trace"),
        ([load, "--html", tmp_path / "absent/load.html"], 73, "absent/load.html cannot be made"),
        ([load, "--html", tmp_path / "folder"], 73, f"Error: {tmp_path}/folder cannot be made"),
    ):
        result = run(*words)
        assert (result.exit_code, said in result.stderr) == (code, True), (words, result.stderr)


def test_a_trace_is_read_from_any_storage(load: Path) -> None:
    with ScriptedServer(load.read_bytes()) as server:
        assert "bound by: store 71 %" in run(server.url).stdout


VALUES = st.none() | st.booleans() | st.integers(-5, 10**19) | st.floats(allow_nan=False) | st.text() | st.just([1])
NAMES = st.sampled_from(
    ["ph", "name", "cat", "ts", "dur", "pid", "tid", "args", "bytes", "attempt", "status", "first_byte", "for", "error"]
)
ARGS = st.dictionaries(NAMES, VALUES, max_size=4)
EVENTS = st.builds(
    lambda base, changed, args: {**base, "args": args, **changed},
    st.sampled_from([load_traces.request(0, 4, 1), load_traces.named(1, "a"), {"ph": "i", "name": "retry", "ts": 1}]),
    st.dictionaries(NAMES, VALUES, max_size=2),
    ARGS,
)


@given(st.lists(EVENTS, max_size=4), st.dictionaries(st.sampled_from([*load_traces.ABOUT]), VALUES, max_size=2))
def test_any_trace_is_shown_or_refused(events: list[Any], about: dict[str, Any]) -> None:
    content = {"traceEvents": events, "otherData": {**load_traces.ABOUT, **about}}
    try:
        trace = traces.parsed(json.dumps(content).encode(), "load.json")
    except FormatError:
        return
    found = traces.summary(trace)
    assert "\n\n" in traces.as_text(found)
    assert len(data_of(traces.page(trace, found))["columns"]["us"]) == sum(each["ph"] == "X" for each in events)
