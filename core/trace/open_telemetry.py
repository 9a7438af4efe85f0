"""Spans and metrics for programs that have imported the API of OpenTelemetry. The program chooses where to send them.

Names and units follow OpenTelemetry's semantic conventions; docs/metrics.md lists them.
https://opentelemetry.io/docs/specs/semconv/general/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

from streamer.core import VERSION
from streamer.core.trace.watcher import Watcher, error_text

MODULES = ("opentelemetry.trace", "opentelemetry.metrics")
MOST_SPANS = 100  # below one load: where a load has more, a trace shows more than a list of spans
BRIEF_NS = 1_000_000


class OpenTelemetry(Watcher):
    """One span for each load, save or copy, with spans below it for its steps; and metrics.

    It watches no session: sessions have too many stages for spans.
    """

    def __init__(self) -> None:
        self._context = import_module("opentelemetry.context").get_current()
        self._lock = threading.Lock()
        self._steps: list[tuple[str, int, int, Mapping[str, Any]]] = []

    @contextmanager
    def during(self, category: str, name: str, **facts: Any) -> Iterator[None]:  # noqa: ARG002  of `Watcher`
        """Keep what the calling thread does in a block, unless it is brief, until the end."""
        began_ns = time.time_ns()
        try:
            yield
        finally:
            ended_ns = time.time_ns()
            with self._lock:
                if ended_ns - began_ns >= BRIEF_NS and len(self._steps) < MOST_SPANS:
                    self._steps.append((name, began_ns, ended_ns, facts))

    def end(self, facts: Mapping[str, Any], shares: Mapping[str, float], error: BaseException | None) -> None:
        """Send the spans, and add to the metrics."""
        with suppress(Exception):  # an exporter's own
            self._measure(facts, shares, error)
        with suppress(Exception):
            self._send(facts, shares, error)

    def _send(self, facts: Mapping[str, Any], shares: Mapping[str, float], error: BaseException | None) -> None:
        trace = import_module("opentelemetry.trace")
        tracer, ended_ns = trace.get_tracer("streamer", VERSION), time.time_ns()
        with self._lock:
            steps, self._steps = self._steps, []
        began_ns = min([ended_ns - int(facts["seconds"] * 1e9), *(began for _, began, _, _ in steps)])
        bounds = {f"bound_by.{word.replace(' ', '_')}": share for word, share in shares.items()}
        attributes = {f"streamer.{name}": value for name, value in {**facts, **bounds}.items()}
        name = f"streamer.{facts['kind']}"
        span = tracer.start_span(name, context=self._context, start_time=began_ns, attributes=attributes)
        within = trace.set_span_in_context(span, self._context)
        for step, step_began_ns, step_ended_ns, more in steps:
            below = {f"streamer.{key}": value for key, value in more.items()}
            own = tracer.start_span(f"streamer.{step}", context=within, start_time=step_began_ns, attributes=below)
            own.end(end_time=step_ended_ns)
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.Status(trace.StatusCode.ERROR, error_text(error)))
        span.end(end_time=ended_ns)

    def _measure(self, facts: Mapping[str, Any], shares: Mapping[str, float], error: BaseException | None) -> None:
        durations, sizes, bounds, retries = _instruments()
        scheme, colon, _ = facts["uri"].partition("://")
        attributes = {"streamer.kind": facts["kind"], "streamer.scheme": scheme if colon else "file"}
        outcome = {} if error is None else {"error.type": type(error).__name__}
        durations.record(facts["seconds"], {**attributes, **outcome})
        sizes.add(facts["bytes"], attributes)
        retries.add(facts.get("retries", 0), attributes)
        for word, share in shares.items():
            bounds.add(share * facts["seconds"], {**attributes, "streamer.cause": word})


@lru_cache(maxsize=1)
def _instruments() -> tuple[Any, ...]:
    meter = import_module("opentelemetry.metrics").get_meter("streamer", VERSION)
    return (
        meter.create_histogram("streamer.duration", "s", "Time of loads, saves and copies"),
        meter.create_counter("streamer.size", "By", "Bytes of tensors that were loaded or saved, or of copied files"),
        meter.create_counter("streamer.bound.duration", "s", "Time of loads and pulls by what bounded them"),
        meter.create_counter("streamer.retries", "{retry}", "Blocks that were requested again"),
    )
