"""Loads through outages of real servers, long ones too: how each ends, how late, and with how many requests.

    cd tests && PYTHONPATH=../examples python -m faults.outage_table               # the better part of half an hour
    cd tests && PYTHONPATH=../examples python -m faults.outage_table --rival runai --storage s3 --longest 10

Each load is one process; a proxy before the server lets everything pass at a pace at which the outage, which begins
after a quarter of the bytes, hits the middle. "Back" is how long after the end of the outage the next byte came; "late"
is what the load took beyond an undisturbed one and beyond the time in which the server was not there. Requests are
counted by the proxy, and so are NFS's calls. What a load that failed said is in ``--json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from comparison import tensors_of
from make_checkpoint import make_checkpoint

from faults.loaders import LOADERS, checksum, environment_of
from faults.outages import Planned, Scene
from faults.storages import STORAGES, Storage

TOTAL_BYTES = 1 << 30  # Run:ai asks for 256 MiB at once, whose answers a wave of refusals would let through
AT_BYTES = TOTAL_BYTES // 4
BYTES_PER_S = 96e6
PATIENCE_S = 150  # beyond the outage; this project's own is 120
SMALL = {"block_bytes": 512 << 10, "coalesce_gap_bytes": 0}
# Reactors, and requests in flight on each: what they make together is the column.
IN_FLIGHT = {64: {"http_reactors": 2, "http_in_flight": 32}, 256: {"http_reactors": 4, "http_in_flight": 64}}
OUTAGES = {"killed": (0.5, 3, 15, 60), "reset_wave": (1, 10), "throttle_wave": (2, 10, 30)}
KINDS = ("http", "s3", "nfs")


@dataclass
class Row:
    """One load.

    Attributes:
        in_flight: Most requests at a time; 0 where that is left to the loader.
        ended: ``equal``, ``WRONG``, ``hung``, or the class of the error; ``not met`` where all was under way already.
        resumed_s: Seconds from the end of the outage to the next byte; None if there was none.
        late_s: Seconds beyond those of an undisturbed load and of the outage; None if it failed.
        after_s: Seconds from the beginning of the outage to the end of the load.
        requests: As many times those of an undisturbed load.
        probes: Of these, how many only asked whether the server is back.
        said: The error's last words.
    """

    loader: str
    storage: str
    outage: str
    lasts_s: float
    in_flight: int
    ended: str
    resumed_s: float | None
    late_s: float | None
    after_s: float
    requests: float
    probes: int | None
    said: str


class Table:
    """Runs the loads of one loader on one storage."""

    def __init__(self, loader: str, kind: str, storage: Storage, expected: dict[str, int]) -> None:
        self._loader, self._kind, self._storage, self._expected = loader, kind, storage, expected

    def rows(self, in_flight: int, planned: list[tuple[str, float]]) -> Iterator[Row]:
        """Load once without an outage, and then through each."""
        with self._storage.proxy(BYTES_PER_S) as proxy:
            usual = self._load(proxy.port, in_flight, PATIENCE_S)
            usual_requests = proxy.requests
        assert usual.get("checksums") == self._expected, usual
        for name, lasts_s in planned:
            with (
                self._storage.proxy(BYTES_PER_S) as proxy,
                Planned(name, Scene(proxy, self._storage.server), AT_BYTES, lasts_s) as outage,
            ):
                reported = self._load(proxy.port, in_flight, lasts_s + PATIENCE_S)
                ended_at = time.monotonic()
                requests, turned_away, resumed_at = proxy.requests, proxy.turned_away, proxy.resumed_at
                outage.end()
            ended = self._ended(reported) if turned_away else "not met"
            late_s = reported["seconds"] - usual["seconds"] - (outage.over_at - outage.began_at)
            yield Row(
                loader=self._loader,
                storage=self._kind,
                outage=name,
                lasts_s=lasts_s,
                in_flight=in_flight,
                ended=ended,
                resumed_s=resumed_at - outage.over_at if resumed_at and ended == "equal" else None,
                late_s=late_s if ended == "equal" else None,
                after_s=ended_at - outage.began_at,
                requests=requests / usual_requests,
                probes=reported.get("report", {}).get("probes"),
                said=reported.get("error", "")[:500],
            )

    def _ended(self, reported: dict[str, Any]) -> str:
        if "checksums" in reported:
            return "equal" if reported["checksums"] == self._expected else "WRONG"
        return str(reported["error"]).partition(":")[0]

    def _load(self, port: int, in_flight: int, within_s: float) -> dict[str, Any]:
        given = self._storage.options(port)
        options = {**SMALL, **IN_FLIGHT.get(in_flight, {})}
        worker = subprocess.Popen(
            [sys.executable, "-m", "faults.loaders", self._loader],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment_of(given),
        )
        try:
            asked = json.dumps([self._storage.url(port), given, options])
            out, _ = worker.communicate(asked + "\n", timeout=within_s)
            return dict(json.loads(out.splitlines()[-1]))
        except subprocess.TimeoutExpired:
            return {"error": "hung", "seconds": within_s}
        except IndexError:
            return {"error": f"died with status {worker.returncode}", "seconds": 0.0}
        finally:
            worker.kill()
            worker.communicate()


HEAD = ("loader", "storage", "outage", "s", "in flight", "ended", "back, s", "late, s", "requests", "probes")


def shown(row: Row) -> str:
    """Write a row of the table in Markdown."""
    times = ["" if each is None else f"{each:.1f}" for each in (row.resumed_s, row.late_s)]
    reported = [row.loader, row.storage, row.outage, f"{row.lasts_s:g}", row.in_flight or "its own", row.ended, *times]
    return (
        "| "
        + " | ".join(map(str, [*reported, f"{row.requests:.2f}x", row.probes if row.probes is not None else ""]))
        + " |"
    )


@click.command()
@click.option("--rival", type=click.Choice([name for name in LOADERS if name != "streamer"]), help="Instead of ours.")
@click.option("--storage", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these; rivals have s3 alone.")
@click.option("--outage", "names", multiple=True, type=click.Choice(list(OUTAGES)), help="Only these.")
@click.option("--longest", default=60.0, help="Seconds of the longest outage.")
@click.option("--in-flight", "in_flights", multiple=True, type=click.Choice([str(each) for each in IN_FLIGHT]))
@click.option("--json", "as_json", is_flag=True, help="A row per line, as JSON.")
def main(
    rival: str | None,
    kinds: tuple[str, ...],
    names: tuple[str, ...],
    longest: float,
    in_flights: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print how loads through outages ended."""
    planned = [(name, s) for name in names or OUTAGES for s in OUTAGES[name] if s <= longest]
    if not as_json:
        click.echo(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bucket" / "model"
        Path(folder).chmod(0o755)
        make_checkpoint(model, total_bytes=TOTAL_BYTES, shards=4)
        expected = {name: checksum(tensor) for name, tensor in tensors_of(model).items()}
        for kind in ("s3",) if rival else kinds or KINDS:
            with STORAGES[kind](model) as storage:
                table = Table(rival or "streamer", kind, storage, expected)
                has_requests = kind != "nfs" and not rival
                for in_flight in map(int, in_flights or IN_FLIGHT) if has_requests else (0,):
                    rows = table.rows(in_flight, [one for one in planned if kind != "nfs" or one[0] == "killed"])
                    for row in rows:
                        click.echo(json.dumps(asdict(row)) if as_json else shown(row))


if __name__ == "__main__":
    main(prog_name="python -m faults.outage_table")
