"""Programs with OpenTelemetry get a span and metrics for each load, save and copy, also for those that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import ROOT, blocks
from safetensors.numpy import save_file

SIZE_BYTES = 3 * 40_000
ANSWER_S = 60
SETUP = """
import json, sys, threading
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import streamer
from streamer._pull.pull import PullArguments, pull
from streamer._push.push import Target, push

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
uri, folder = sys.argv[1:]

def load(uri, **more):
    return streamer.load(uri, framework="np", progress=False, **more)

def pull_to(uri, folder):
    pull(uri, folder, PullArguments(), progress=False, on_wait=print)

def push_to(uri, folder):
    push(uri, Target(folder), PullArguments(), progress=False)

"""
TELL = """
spans = [
    {"name": each.name, "id": each.context.span_id, "parent": each.parent and each.parent.span_id,
     "began": each.start_time, "ended": each.end_time, "status": each.status.status_code.name,
     "said": each.status.description, **each.attributes}
    for each in exporter.get_finished_spans()
]
points = [
    {"name": metric.name, "value": getattr(point, "value", None) or getattr(point, "count", None), **point.attributes}
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    for point in metric.data.data_points
]
print(json.dumps([spans, points]))
"""


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({f"{at}": np.full(10_000, at, np.float32) for at in range(3)}, folder / "model.safetensors")
    return folder


def run(program: str, *arguments: Any) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout


def told(program: str, *arguments: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run a program; return its spans and the points of its metrics."""
    spans, points = json.loads(run(SETUP + program + TELL, *arguments).splitlines()[-1])
    return spans, points


def test_a_load_is_a_span_below_the_programs_own_with_its_steps_below_it(model, tmp_path):
    program = 'with trace.get_tracer("program").start_as_current_span("start"):\n    load(uri)\n'
    spans, points = told(program, model, tmp_path)
    by_name = {each["name"]: each for each in spans}
    load, outer = by_name["streamer.load"], by_name["start"]
    assert load["parent"] == outer["id"]
    assert outer["began"] <= load["began"] < load["ended"] <= outer["ended"]
    assert (load["streamer.uri"], load["streamer.bytes"]) == (str(model), SIZE_BYTES)
    assert load["streamer.is_complete"] is True
    assert sum(share for name, share in load.items() if "bound_by" in name) == pytest.approx(1, abs=0.02)
    steps = [each for each in spans if each["parent"] == load["id"]]
    assert all(load["began"] <= each["began"] < each["ended"] <= load["ended"] for each in steps)
    sizes = [each for each in points if each["name"] == "streamer.size"]
    expected = {"name": "streamer.size", "value": SIZE_BYTES, "streamer.kind": "load", "streamer.scheme": "file"}
    assert sizes == [expected]


def test_saves_and_copies_have_spans(model, tmp_path):
    program = (
        'streamer.save(load(uri), f"{folder}/saved", progress=False)\n'
        'push_to(uri, f"{folder}/pushed")\n'
        'pull_to(uri, f"{folder}/pulled")\n'
    )
    spans, points = told(program, model, tmp_path)
    kinds = {"load", "save", "push", "pull"}
    assert {each["name"] for each in spans if each["parent"] is None} == {f"streamer.{kind}" for kind in kinds}
    durations = {each["streamer.kind"]: each["value"] for each in points if each["name"] == "streamer.duration"}
    assert durations == dict.fromkeys(kinds, 1)


def test_what_fails_has_the_status_and_the_type_of_its_error_but_no_secret(model, tmp_path):
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / "model.safetensors"
    cut.write_bytes((model / "model.safetensors").read_bytes()[:-1])
    program = (
        "def failing(work):\n"
        "    try: work()\n"
        "    except streamer.StreamerError: pass\n"
        'failing(lambda: load(folder + "/cut"))\n'
        'failing(lambda: load(folder + "/absent"))\n'
        'failing(lambda: streamer.save(load(uri), "http://user:C4n4ry@127.0.0.1:9/model", progress=False))\n'
        'failing(lambda: pull_to(folder + "/absent", folder + "/pulled"))\n'
        'failing(lambda: push_to(folder + "/absent", folder + "/pushed"))\n'
    )
    spans, points = told(program, model, tmp_path)
    failed = [(each["name"], each["error.type"]) for each in spans if each["status"] == "ERROR"]
    assert failed[0][0] == "streamer.load"
    assert [name for name, _ in failed] == [f"streamer.{kind}" for kind in ("load", "load", "save", "pull", "push")]
    assert dict(failed[1:2]) == {"streamer.load": "ObjectNotFoundError"}
    assert all(each["said"] for each in spans if each["status"] == "ERROR")
    assert "C4n4ry" not in json.dumps([spans, points])
    counted = [each for each in points if each["name"] == "streamer.duration" and "error.type" in each]
    assert sum(each["value"] for each in counted) == len(failed)


def test_a_load_that_its_consumer_fails_is_no_success(model, tmp_path):
    program = (
        "try:\n"
        '    with streamer.stream(uri, framework="np", progress=False) as stream:\n'
        "        raise ZeroDivisionError\n"
        "except ZeroDivisionError: pass\n"
    )
    spans, _ = told(program, model, tmp_path)
    (load,) = [each for each in spans if each["name"] == "streamer.load"]
    assert (load["error.type"], load["streamer.is_complete"]) == ("ZeroDivisionError", False)


def test_an_exporter_that_fails_fails_no_load(model, tmp_path):
    program = "def broken(*arguments, **named): raise RuntimeError\ntrace.get_tracer = broken\nload(uri)\n"
    spans, points = told(program, model, tmp_path)
    assert spans == []
    assert points  # each is tried for itself


def test_a_program_without_opentelemetry_imports_nothing_of_it(model):
    program = (
        "import sys, streamer\n"
        'streamer.load(sys.argv[1], framework="np", progress=False)\n'
        'print([name for name in sys.modules if "telemetry" in name or "streamer.core.trace" in name])\n'
    )
    assert run(program, model) == "[]\n"


def test_prometheus_reads_the_metrics_that_the_page_names(model):
    command = [sys.executable, "-u", ROOT / "examples/prometheus_metrics.py", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert process.stdout.readline() == "3 tensors\n"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(address, timeout=ANSWER_S) as answer:
                text = answer.read().decode()
        finally:
            process.kill()
    page = (ROOT / "docs/metrics.md").read_text()
    totals = [f"streamer_{name}_total" for name in ("size_bytes", "bound_duration_seconds", "retries")]
    for name in ("streamer_duration_seconds", *totals):
        assert name in page
        assert f"\n{name}" in text


def test_the_lines_of_the_page_are_enough(model):
    (lines,) = blocks("docs/metrics.md")
    program = (
        f"{lines}\nimport sys, streamer\n"
        'streamer.load(sys.argv[1], framework="np", progress=False)\n'
        "from prometheus_client import generate_latest\nprint(generate_latest().decode())\n"
    )
    assert "streamer_duration_seconds_bucket" in run(program, model)
