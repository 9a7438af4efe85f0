"""The commands ``doctor``, ``ps`` and ``trace``: what makes loads slow or fail, and what to do about it."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from streamer._commands.output import DIFFERENT, Output, answers, print_line, storage_options, table
from streamer.core import VERSION
from streamer.core.errors import UsageError
from streamer.core.folders.drafts import output_of
from streamer.core.quoting import names_text, printable, printable_lines, size_text
from streamer.core.secrets.redact import redact

if TYPE_CHECKING:
    from streamer._doctor.findings import Finding
    from streamer._doctor.place import Examined

_shown = partial(click.option, show_default=True)


class _Seconds(click.FloatRange):
    """A time; "nan" is within the bounds of every range of click."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        return self.fail(f"{value!r} is no number", param, ctx) if math.isnan(seconds) else seconds


COLORS = {"ok": "green", "slow": "yellow", "broken": "red", "unknown": None}


@click.command("doctor")
@click.argument("uri", required=False)
@click.option("--pid", type=int, help="Look into the loads of a running process instead; it is not stopped.")
@click.option("--bench", "has_bench", is_flag=True, help="Measure raw reads beside those of a load, too.")
@_shown("--seconds", type=_Seconds(0, 600), default=2.0, help="How long each speed is measured; 0: not at all.")
@_shown("--timeout", "deadline_s", type=_Seconds(0.1, 3600), default=10.0, help="Seconds until a probe ends.")
@storage_options()
@answers
def examine_machine(
    uri: str | None, pid: int | None, output: Output, *, has_bench: bool, seconds: float, deadline_s: float, **how: Any
) -> int:
    """Find out what makes loads slow, or fail.

    It looks at this machine and, with a URI, at the way to it: a line each, with ok, slow, broken or unknown, why it
    matters, and what to do. It reads from the URI for some seconds and writes nothing. At the end there is a line that
    says what bounds the speed, and a text without secrets for a report. With --pid, it says what a process of this user
    reads, or waits for: a debugger, its consumer, a server, other ranks. Exit codes: 0 nothing is broken, 1 something
    is.

    Examples: python -m streamer doctor s3://bucket/model

    python -m streamer doctor /mnt/models/llama --bench --json
    """
    if pid is not None:
        return _look_into(pid, output)
    from streamer._doctor.findings import probed  # noqa: PLC0415 (as needed)
    from streamer._doctor.machine import gpu_findings, libraries, machine_findings  # noqa: PLC0415 (as needed)
    from streamer.core.secrets.texts import SecretTexts  # noqa: PLC0415 (as needed)

    options = how["storage_options"]
    secrets = SecretTexts(uri or "", options)

    def tell(finding: Finding) -> None:
        if not (output.as_json or (output.is_quiet and finding.state == "ok")):
            print_line(_colored(finding, printable(secrets.masked(str(finding)))))

    findings = []
    for finding in (*probed("machine", machine_findings, deadline_s), *probed("gpu", gpu_findings, deadline_s + 30)):
        tell(finding)
        findings.append(finding)
    place = None
    if uri is not None:
        from streamer._doctor.place import examine  # noqa: PLC0415 (as needed)

        place = examine(uri, options, deadline_s=deadline_s, seconds=seconds, tell=tell)
        findings += place.findings
    report: dict[str, Any] = {
        "findings": [{name: secrets.masked(text) for name, text in vars(each).items()} for each in findings],
        "environment": {"streamer": VERSION, "python": platform.python_version(), "libraries": libraries()},
        "uri": redact(uri) if uri else None,
    }
    report |= _speeds(place, seconds, has_bench=has_bench) if place else {}
    is_broken = any(each.state == "broken" for each in findings)
    if output.as_json:
        output.show(report, "")
    elif not output.is_quiet:
        print_line(printable_lines(_last_lines(report)))
    return DIFFERENT if is_broken else 0


@click.command("ps")
@answers
def list_processes(*, output: Output) -> None:
    """List this user's processes that load, and what each does.

    Example: python -m streamer ps
    """
    from streamer._doctor.running import processes, waiting_processes  # noqa: PLC0415 (as needed)

    running = list(processes())
    waiting = waiting_processes(running)
    found = [each.to_dict(waiting) for each in running]
    rows = [("PID", "STAGE", "SECONDS", "BYTES", "URI")]
    for each in found:
        for load in each["loads"] or [{}]:
            stage = "stopped" if each["is_stopped"] else load.get("stage", "no load")
            stage += f" {names_text([*map(str, load['awaits'])])}" if load.get("awaits") else ""
            stage += f", {len(each['waiting'])} wait for it" if each["waiting"] else ""
            size = size_text(load.get("done_bytes", 0)) if load else "-"
            rows.append((str(each["pid"]), stage, str(load.get("seconds", "-")), size, load.get("uri", "-")))
    output.show(found, lambda: table(rows), "\n".join(str(each["pid"]) for each in found))


@click.command("trace")
@click.argument("uri", metavar="FILE")
@click.option("--html", metavar="PAGE", help="Write a page with pictures, which needs no network; - prints it.")
@storage_options()
@answers
def show_trace(uri: str, *, html: str | None, storage_options: dict[str, Any] | None, output: Output) -> None:
    """Show what bounded a load, from its trace.

    streamer.Options(trace=FILE) writes the trace. It prints what bounded the load, the time by kind of work, and the
    slowest requests with their reasons; the page has them over time, too. A file PAGE is replaced when the new one is
    complete. Exit codes: as for pull.

    Example: python -m streamer trace load.json --html load.html
    """
    from streamer._commands import traces  # noqa: PLC0415 (as needed)

    trace = traces.read_trace(uri, storage_options)
    found = traces.summary(trace)
    if html == "-":
        print_line(traces.page(trace, found))
        return
    if html is not None:
        if not html or "://" in html:
            raise UsageError("the page is written to a file of this machine", uri=html, hint="Give --html a path")
        if os.path.exists(html) and os.path.exists(uri) and os.path.samefile(html, uri):
            raise UsageError("the page would replace the trace", uri=html, hint="Write it to another file")
        with output_of(os.path.abspath(html)) as name, open(name, "w", encoding="ascii") as file:
            file.write(traces.page(trace, found))
    output.show({**found, "html": html}, lambda: traces.as_text(found), html)


def _look_into(pid: int, output: Output) -> int:
    from streamer._doctor.running import process_findings  # noqa: PLC0415 (as needed)

    findings = list(process_findings(pid))
    output.show({"findings": [vars(each) for each in findings]}, printable_lines(map(str, findings)))
    return DIFFERENT if any(each.state in ("broken", "unknown") for each in findings) else 0


def _speeds(place: Examined, seconds: float, *, has_bench: bool) -> dict[str, Any]:
    from streamer._doctor.bench import bench  # noqa: PLC0415 (as needed)
    from streamer._doctor.speed import bound  # noqa: PLC0415 (as needed)

    if place.speed is None:
        return {}
    rows = {"bench": [row._asdict() for row in bench(place.objects, seconds)]} if has_bench else {}
    return {"bound": bound(place.speed, place.objects), **rows}


def _last_lines(report: Mapping[str, Any]) -> list[str]:
    lines = []
    if rows := report.get("bench"):
        cells = [tuple(f"{value}" for value in row.values()) for row in rows]
        lines += ["", *table([("READER", "STATE", "IN FLIGHT", "GB/S", "CPU-S/GB"), *cells]).split("\n")]
    system = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors"
    block = [f"streamer {VERSION}, Python {platform.python_version()}, {system}"]
    block += [", ".join(f"{name} {number}" for name, number in report["environment"]["libraries"].items())]
    block += [report["uri"]] if report["uri"] else []
    told = [each for each in report["findings"] if each["state"] != "ok"]
    block += [f"{each['state']}: {each['name']}: {each['found']}" for each in told]
    if limit := report.get("bound"):
        achieved = f"achieved {limit['achieved_gb_s']:.3g} of {limit['limit_gb_s']:.3g} GB/s that memory takes"
        block.append(f"bound by {limit['by']}: {achieved}")
        lines += ["", block[-1]]
    return [*lines, "", "For a report (it holds no secret):", "```", *block, "```"]


def _colored(finding: Finding, line: str) -> str:
    if os.environ.get("NO_COLOR") or sys.stdout is None or not sys.stdout.isatty():
        return line
    return click.style(line[:7], fg=COLORS[finding.state]) + line[7:]
