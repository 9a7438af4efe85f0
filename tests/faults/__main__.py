"""Serve a folder with faults to try any S3 client on: ``cd tests && python -m faults DIR --fault stall --rate 0.1``."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import click

from faults.catalogue import FAULTS
from faults.server import FaultServer


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option("--fault", "names", multiple=True, type=click.Choice(sorted(FAULTS)), help="May be given several times.")
@click.option("--rate", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share of requests hit.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--port", type=int, default=0, help="0 chooses a free one.")
@click.option("--list", "lists", is_flag=True, help="Only list the faults.")
def main(folder: Path | None, names: tuple[str, ...], rate: float, seed: int, port: int, lists: bool) -> None:
    """Serve FOLDER as an S3 bucket of its name, with faults in its object bytes, until Ctrl-C."""
    if lists or folder is None:
        for fault in FAULTS.values():
            click.echo(f"{fault.name:26} {fault.summary}")
        return
    drawn = random.Random(seed)
    chosen = [FAULTS[name] for name in names]
    with FaultServer(
        folder, lambda _: drawn.choice(chosen) if chosen and drawn.random() < rate else None, port
    ) as server:
        click.echo(f"{server.url()} at endpoint {server.endpoint_url}, any keys", err=True)
        stopped = threading.Event()
        signal.signal(signal.SIGINT, lambda *_: stopped.set())
        stopped.wait()
        click.echo(f"{server.requests} requests, faults: {dict(server.faults)}", err=True)


if __name__ == "__main__":
    main(prog_name="python -m faults")
