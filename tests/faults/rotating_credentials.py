"""Many loads, each with other storage options, as under credentials that rotate: what does the process keep of them?

    cd tests && python -m faults.rotating_credentials --storage s3 --loads 500

Every load makes a file system of its own. Shown are memory, descriptors, file systems alive and how many fsspec keeps,
after so many loads; the first few stay for the next load with their options.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from fsspec import AbstractFileSystem
from make_checkpoint import make_checkpoint
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.seaweedfs import SeaweedServer

import streamer
from faults.soak import open_descriptors

WARM_UP = 12  # loads: more than are kept idle
SHOWN_AFTER = (1, 5, WARM_UP, 20, 50, 100, 200, 300, 400, 500)

OptionsOf = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Kept:
    """What the process keeps after some loads.

    Attributes:
        loads: How many.
        memory_mb: Resident set.
        descriptors: Open ones.
        alive: File systems that exist.
        cached: Those that fsspec keeps.
    """

    loads: int
    memory_mb: float
    descriptors: int
    alive: int
    cached: int


def kept_after(loads: int) -> Kept:
    """Measure, after all garbage is collected: what one file system held ends when that one has."""
    for _ in range(3):
        gc.collect()
        time.sleep(0.1)  # connections are closed in the background
    alive = [each for each in gc.get_objects() if isinstance(type(each), type(AbstractFileSystem))]
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Kept(loads, pages * 4096 / 1e6, open_descriptors(), len(alive), cached_by_fsspec())


def cached_by_fsspec() -> int:
    """Count the file systems that fsspec keeps."""
    classes: list[Any] = [AbstractFileSystem]
    for cls in classes:
        classes += (each for each in cls.__subclasses__() if each not in classes)
    return sum(len(cls._cache) for cls in classes)


def rotate(uri: str, options_of: OptionsOf, loads: int) -> Iterator[int]:
    """Load so many times, each time with other options; gives the number of loads done."""
    for number in range(loads):
        streamer.load(uri, storage_options=options_of(number), progress=False)
        yield number + 1


def s3_options(server: SeaweedServer) -> OptionsOf:
    """Options that make another file system each, under the same keys."""
    return lambda number: {**server.storage_options(), "config_kwargs": {"user_agent_extra": f"n{number}"}}


def gcs_options(server: GcsServer) -> OptionsOf:
    """A service account's key, which each file system exchanges for a token of its own."""
    options = server.storage_options()
    return lambda number: {**options, "default_location": f"n{number}"}


def azure_options(server: AzuriteServer) -> OptionsOf:
    """Another SAS each."""
    return lambda number: server.sas_options(server.container_sas("private", lifetime_s=3600.0 + 60 * number))


def chain_options(server: SeaweedServer, cache: Path) -> OptionsOf:
    """A chain's options: two file systems, which fsspec makes."""
    inner = s3_options(server)
    return lambda number: {"s3": inner(number), "simplecache": {"cache_storage": str(cache)}}


@contextmanager
def storage(kind: str, folder: Path) -> Iterator[tuple[str, OptionsOf]]:
    """Serve a small checkpoint; gives its URL and the options of each load."""
    make_checkpoint(folder / "model", total_bytes=100_000, shards=1)
    if kind == "az":
        with AzuriteServer() as azure:
            azure.make_container("private")
            yield azure.upload_folder(folder / "model", "private", "model"), azure_options(azure)
    elif kind == "gs":
        with GcsServer() as google:
            google.make_bucket("private")
            yield google.upload_folder(folder / "model", "private", "model"), gcs_options(google)
    else:
        with SeaweedServer() as server:
            server.make_bucket("private")
            uri = server.upload_folder(folder / "model", "private", "model")
            if kind == "s3":
                yield uri, s3_options(server)
            else:
                yield f"simplecache::{uri}", chain_options(server, folder / "cache")


@click.command()
@click.option("--storage", "kind", type=click.Choice(["s3", "gs", "az", "chain"]), default="s3", show_default=True)
@click.option("--loads", default=500, show_default=True)
@click.option("--growth-mb", default=60.0, show_default=True, help="What may be added after 50 loads, by fragments.")
def main(kind: str, loads: int, growth_mb: float) -> None:
    """Load under rotating credentials; fails where memory or descriptors grow."""
    seen: list[Kept] = []
    with tempfile.TemporaryDirectory() as folder, storage(kind, Path(folder)) as (uri, options_of):
        for done in rotate(uri, options_of, loads):
            if done in SHOWN_AFTER or done == loads:
                seen.append(kept_after(done))
                click.echo(seen[-1])
    settled = next((kept for kept in seen if kept.loads >= 50), seen[-1])
    has_grown = seen[-1].memory_mb > settled.memory_mb + growth_mb or seen[-1].descriptors > settled.descriptors + 4
    sys.exit(has_grown)


if __name__ == "__main__":
    main(prog_name="python -m faults.rotating_credentials")
