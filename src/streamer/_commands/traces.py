"""Reads the trace of a load, sums it up, and lays it out as one page that needs no network.

A trace is a JSON object in the form of Chrome's traces, of which only those of this package are accepted. Guarantees:
an event that is not understood is an error, or is counted; texts of the trace are escaped in the page.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from streamer._commands.output import table
from streamer._locate_shards import opened_store
from streamer.core.errors import FormatError
from streamer.core.format import strict_json
from streamer.core.options.settings import resolve
from streamer.core.quoting import counted, printable_lines, quoted, size_text
from streamer.core.secrets.redact import redact
from streamer.core.shards.shards import sized
from streamer.core.shards.small_files import read_files

MOST_BYTES = 256_000_000  # Python needs about ten times as much memory for its values
SLOWEST = 10
SHOWN_LOADS = 20
SHOWN_US = 500  # a shorter phase would show as 0.000 s
PHASES = ("dns", "connect", "tls", "first_byte", "transfer")  # of a request, in their order


class Event(NamedTuple):
    """Something that took time on a lane."""

    name: str
    kind: str
    begin_us: float
    us: float
    lane: tuple[Any, Any]  # process and thread
    args: Mapping[str, Any]

    def phases(self) -> dict[str, float]:
        """Microseconds of each phase of a request."""
        return {phase: self.args[phase] for phase in PHASES if phase in self.args}

    def reason(self) -> str:
        """Say what took the time."""
        phases, args = {name: us for name, us in self.phases().items() if us >= SHOWN_US}, self.args
        longest = max(phases, key=phases.__getitem__, default=None)
        parts = [f"{longest.replace('_', ' ')} {phases[longest] / 1e6:.3f} s"] if longest else []
        parts += [f"attempt {args['attempt']}"] if args.get("attempt", 1) > 1 else []
        parts += [f"status {args['status']}"] if args.get("status") not in (None, 0, 200, 206) else []
        parts += ["new connection"] if args.get("connection_reused") is False else []
        return ", ".join([*parts, str(args["error"])] if args.get("error") else parts)


@dataclass
class Trace:
    """The content of a trace."""

    about: Mapping[str, Any]
    events: list[Event] = field(default_factory=list)
    instants: list[tuple[float, str, str]] = field(default_factory=list)  # microseconds, name, text
    names: dict[tuple[Any, Any], str] = field(default_factory=dict)  # of processes (thread None) and threads
    others: Counter[str] = field(default_factory=Counter)  # events of other forms, which are not shown

    def lane_name(self, lane: tuple[Any, Any], has_process: bool) -> str:
        """Return the name of a lane."""
        text = self.names.get(lane, f"thread {lane[1]}")
        return f"{self.names.get((lane[0], None), f'process {lane[0]}')}: {text}" if has_process else text

    def add(self, event: Mapping[str, Any], number: int) -> None:
        """Add an event of the file."""
        form, lane, args = event["ph"], (event.get("pid"), event.get("tid")), event.get("args") or {}
        if not isinstance(args, dict) or not all(isinstance(each, (int, str, type(None))) for each in lane):
            raise ValueError(f"event {number} has arguments or a thread of another type")
        if form == "M" and event["name"] in ("process_name", "thread_name"):
            self.names[lane if event["name"] == "thread_name" else (lane[0], None)] = str(args["name"])
        elif form == "i":
            text = ", ".join(f"{name} {value}" for name, value in args.items() if value is not None)
            self.instants.append((_number(event, "ts", number), str(event["name"]), text))
        elif form == "X":
            for name in {*PHASES, "bytes", "attempt"} & {*args}:
                _number(args, name, number)
            times = _number(event, "ts", number), _number(event, "dur", number)
            self.events.append(Event(str(event["name"]), str(event.get("cat")), *times, lane, args))
        elif form != "M":
            self.others[str(form)] += 1


def read_trace(uri: str, storage_options: Mapping[str, Any] | None) -> Trace:
    """Read a trace from any storage."""
    settings = resolve(None)
    with opened_store(uri, storage_options, None, settings) as store:
        (info,) = sized(store, [store.info(store.root)])
        if (info.size_bytes or 0) > MOST_BYTES:
            hint = f"A trace of a load has less than {size_text(MOST_BYTES)}; Perfetto may open this file"
            raise FormatError(f"the file has {size_text(info.size_bytes or 0)}", uri=info.uri, hint=hint)
        (content,) = read_files(store, [info], settings)
    return parsed(content, redact(uri))


def parsed(content: bytes, uri: str) -> Trace:
    """Check the bytes of a trace, and return what it holds."""
    hint = "streamer.Options(trace='FILE') writes a trace when its load ends"
    if not content.strip():
        raise FormatError("the file is empty, so it is no trace", uri=uri, hint=hint)
    try:
        document = strict_json.loads(strict_json.decode_utf8(content))
    except ValueError as error:
        cut = "" if content.rstrip().endswith(b"}") else ", or was cut off"
        raise FormatError(f"the file is no JSON{cut}: {error}", uri=uri, hint=hint) from error
    about = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(about, dict) or about.get("product") != "streamer":
        raise FormatError("the file is no trace of a load of streamer", uri=uri, hint=f"{hint}. Perfetto opens others")
    try:
        trace = Trace(_checked(about))
        for number, event in enumerate(document["traceEvents"]):
            trace.add(event, number)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = error if isinstance(error, ValueError) else f"a part is missing, or is of another type ({error})"
        raise FormatError(f"the trace is damaged: {what}", uri=uri, hint="Trace the load again") from error
    if not trace.events:
        raise FormatError("the trace holds no event", uri=uri, hint="Trace a load that reads something")
    begin = min(each.begin_us for each in trace.events)  # their clock began with the machine
    trace.events = [each._replace(begin_us=each.begin_us - begin) for each in trace.events]
    trace.instants = sorted((max(0, at - begin), name, text) for at, name, text in trace.instants)
    return trace


def _checked(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a trace says about its load, with a value of the right type for each name."""
    shares: list[dict[str, Any]] = [
        {"what": str(each["what"]), "share": _number(each, "share")} for each in about.get("bound_by") or []
    ]
    texts = {name: str(about.get(name) or "") for name in ("uri", "version", "advice", "error")}
    numbers = {name: _number({name: 0, **about}, name) for name in ("bytes", "seconds", "dropped_events")}
    bound = ", ".join(f"{each['what']} {100 * each['share']:.0f} %" for each in shares)
    loads = [_checked(load) for process in about.get("processes") or [] for load in process["loads"]]
    is_complete = about.get("is_complete") is not False
    return texts | numbers | {"is_complete": is_complete, "bound_by": shares, "bound": bound, "loads": loads}


def _number(values: Mapping[str, Any], name: str, event: int | None = None) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        where = "" if event is None else f" of event {event}"
        raise ValueError(f"{name!r}{where} is {quoted(value)}, and no number from 0 on")
    return value


# --- what it says -----------------------------------------------------------------------------------------------------


def summary(trace: Trace) -> dict[str, Any]:
    """Return the summary for programs."""
    kinds: dict[str, dict[str, Any]] = {}
    for each in trace.events:
        kind = kinds.setdefault(each.kind, {"kind": each.kind, "events": 0, "seconds": 0.0, "bytes": 0})
        kind["events"] += 1
        kind["seconds"] += each.us / 1e6
        kind["bytes"] += each.args.get("bytes", 0)
    notes: dict[str, dict[str, Any]] = {}
    for at, name, text in trace.instants:
        notes.setdefault(name, {"name": name, "count": 0, "first_s": at / 1e6, "text": text})["count"] += 1
    wanted = ("request", "upload") if {"request", "upload"} & {*kinds} else ("read", "write")
    slowest = sorted((each for each in trace.events if each.kind in wanted), key=lambda each: -each.us)[:SLOWEST]
    rows = [
        {"object": each.name, **each.args, "kind": each.kind, "reason": each.reason() or each.kind}
        | {"seconds": each.us / 1e6, "at_s": each.begin_us / 1e6}
        for each in slowest
    ]
    by_time = sorted(kinds.values(), key=lambda each: -each["seconds"])
    found = {"missing": _missing(trace), "kinds": by_time, "slowest": rows, "notes": [*notes.values()]}
    last_us = max(each.begin_us + each.us for each in trace.events)
    return {**trace.about, "last_event_s": last_us / 1e6, **found}


def _missing(trace: Trace) -> str:
    """Say which events the trace, or what is shown, leaves out."""
    dropped, others = int(trace.about["dropped_events"]), sum(trace.others.values())
    parts = [f"{counted(dropped, 'event')} did not fit into the trace, and no sum counts them"] if dropped else []
    parts += [f"{counted(others, 'event')} of other forms ({', '.join(trace.others)}) not shown"] if others else []
    return "; ".join(parts)


def _size(about: Mapping[str, Any]) -> str:
    speed = f", {size_text(int(about['bytes'] / about['seconds']))}/s" if about["seconds"] > 1e-6 else ""
    ended = "" if about["is_complete"] else ", not complete"
    return f"{size_text(int(about['bytes']))} in {about['seconds']:.2f} s{speed}{ended}"


def _head(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the trace is of, and how long that took."""
    if found["uri"]:
        return found["uri"], _size(found)
    return "no load has ended", f"the last event at {found['last_event_s']:.2f} s"


def _bound(found: Mapping[str, Any]) -> str:
    bound = f"bound by: {found['bound']}" if found["bound"] else ""
    failed = f"failed: {found['error']}" if found["error"] else ""
    return "; ".join(filter(None, [bound, failed])) or "the trace does not say what bounded it"


def _slowest(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("SECONDS", "AT", "SIZE", "OFFSET", "OBJECT", "WHY")]
    for each in found["slowest"]:
        texts = size_text(int(each.get("bytes", 0))), str(each.get("offset", "")), str(each["object"]), each["reason"]
        rows.append((f"{each['seconds']:.3f}", f"{each['at_s']:.3f}", *texts))
    return rows


def as_text(found: Mapping[str, Any]) -> str:
    """Return the summary for people."""
    lines = [": ".join(_head(found)), _bound(found)]
    lines += [f"what would help: {found['advice']}"] if found["advice"] else []
    kinds = [("KIND", "EVENTS", "SECONDS", "SIZE")]
    for each in found["kinds"]:
        size = size_text(int(each["bytes"])) if each["bytes"] else "-"
        kinds.append((each["kind"], str(each["events"]), f"{each['seconds']:.3f}", size))
    lines += ["", *table(kinds).split("\n")]
    lines += ["", "the slowest:", *table(_slowest(found)).split("\n")] if found["slowest"] else []
    if len(found["loads"]) > 1:
        loads = sorted(found["loads"], key=lambda each: -each["seconds"])
        which = "all of them" if len(loads) <= SHOWN_LOADS else f"the longest {SHOWN_LOADS}; --json has all"
        lines += ["", f"the longest of {len(loads)} loads is described above; {which}:"]
        lines += [f"{each['uri']}: {_size(each)}: {_bound(each)}" for each in loads[:SHOWN_LOADS]]
    for each in found["notes"]:
        lines.append(f"{each['name']}: {each['count']}, the first at {each['first_s']:.3f} s: {each['text']}")
    return printable_lines([*lines, *filter(None, [found["missing"]])])


def page(trace: Trace, found: Mapping[str, Any]) -> str:
    """Return the page, in ASCII: its data is JSON in which nothing ends its element."""
    template = Path(__file__).with_name("load_page.html").read_text(encoding="ascii")
    events = sorted(trace.events, key=lambda each: each.begin_us)
    processes = [*dict.fromkeys(each.lane[0] for each in events)]
    names = {each.lane: trace.lane_name(each.lane, len(processes) > 1) for each in events}
    numbered = {lane: re.sub(r"\d+", lambda digits: digits[0].zfill(12), name) for lane, name in names.items()}
    ordered = sorted(names, key=lambda lane: (processes.index(lane[0]), numbered[lane]))  # "#2" is before "#10"
    lanes = {lane: number for number, lane in enumerate(ordered)}
    texts: dict[str, int] = {}
    kinds = [each["kind"] for each in found["kinds"]]
    rows = []  # with numbers in the place of texts
    for each in events:
        detail = ", ".join(filter(None, [str(each.args.get("object", "")), each.reason()]))
        first = sum(each.phases().values()) - each.phases().get("transfer", 0)
        words = each.name, detail, str(each.args.get("for", ""))
        numbers = lanes[each.lane], kinds.index(each.kind), *(texts.setdefault(w, len(texts)) for w in words)
        rows.append(
            (*numbers, round(each.begin_us), round(each.us), each.args.get("bytes", 0), round(min(first, each.us)))
        )
    uri, size = _head(found)
    columns = ("lane", "kind", "name", "detail", "waited", "begin", "us", "bytes", "first")
    data = {
        "summary": {**found, "uri": uri, "bound": _bound(found), "size": size, "slowest": _slowest(found)},
        "lanes": [*map(names.__getitem__, lanes)],
        "instants": sorted({at for at, *_ in trace.instants}),
        "kinds": kinds,
        "texts": [*texts],
        "columns": dict(zip(columns, zip(*rows, strict=True), strict=True)),
    }
    return template.replace("@DATA@", json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
