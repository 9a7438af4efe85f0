"""Serve a folder with faults and outages, to try any S3 client: ``cd tests && python -m faults DIR --fault stall``."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import click
from servers.tcp_proxy import TcpProxy, http_requests

from faults.catalogue import FAULTS
from faults.mutating_proxy import MutatingProxy
from faults.mutations import MUTATIONS
from faults.outages import OUTAGES, Planned, Scene
from faults.server import FaultServer

# Those for which nothing is needed but the fault server and a way to it.
POSSIBLE = {name: each for name, each in OUTAGES.items() if all(hasattr(FaultServer, need) for need in each.needs)}


def list_all() -> None:
    """Print what there is, by name."""
    for each in (*FAULTS.values(), *POSSIBLE.values()):
        click.echo(f"{each.name:26} {each.summary}")
    for change in MUTATIONS:
        click.echo(f"{change.__name__:26} {(change.__doc__ or '').strip()}")


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--fault", "names", multiple=True, type=click.Choice(sorted(FAULTS)), help="May be given several times.")
@click.option("--rate", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share of requests hit.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--outage", type=click.Choice(sorted(POSSIBLE)), help="Happens to the whole server, again and again.")
@click.option("--after", default=64, show_default=True, help="MiB of answers between two outages.")
@click.option("--lasts", default=1.0, show_default=True, help="Seconds of each.")
@click.option(
    "--mutate", type=click.FloatRange(0, 1), default=0.0, help="Share of answers about objects that are mutated."
)
@click.option("--port", type=int, default=0, help="0 chooses a free one.")
@click.option("--list", "lists", is_flag=True, help="Only list the faults, outages and mutations.")
def main(
    folder: Path | None,
    names: tuple[str, ...],
    rate: float,
    seed: int,
    outage: str | None,
    after: int,
    lasts: float,
    mutate: float,
    port: int,
    lists: bool,
) -> None:
    """Serve FOLDER as an S3 bucket of its name, with faults in its bytes and in what it says of them, until Ctrl-C."""
    if lists or folder is None:
        list_all()
        return
    drawn = random.Random(seed)
    chosen = [FAULTS[name] for name in names]
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    with ExitStack() as stack:
        server = stack.enter_context(
            FaultServer(folder, lambda _: drawn.choice(chosen) if chosen and drawn.random() < rate else None)
        )
        mutating = stack.enter_context(MutatingProxy(server.port, drawn, mutate)) if mutate else None
        behind = mutating.port if mutating else server.port
        proxy = stack.enter_context(TcpProxy(behind, http_requests, port=port or None))
        click.echo(f"{server.url()} at endpoint http://127.0.0.1:{proxy.port}, any keys", err=True)
        outages = 0
        while outage is not None and not stopped.is_set():
            with Planned(outage, Scene(proxy, server), proxy.passed_bytes + (after << 20), lasts) as planned:
                while not planned.over.wait(0.1) and not stopped.is_set():
                    pass
                outages += planned.over.is_set()
        stopped.wait()
        faults = dict(server.faults)
        click.echo(
            f"{proxy.requests} requests, {server.requests} of objects; faults: {faults}, outages: {outages}"
            f", mutations: {dict(mutating.mutations) if mutating else {}}",
            err=True,
        )


if __name__ == "__main__":
    main(prog_name="python -m faults")
