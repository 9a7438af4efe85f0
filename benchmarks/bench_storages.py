"""Load one checkpoint from every storage, and measure the raw limit of the same server if a raw reader exists.

    python benchmarks/bench_storages.py [--rounds 3] [--bytes N] [--only REGEX]

Guarantees: the servers of the tests are started on loopback, and check credentials. The raw readers use the same URLs,
signatures and headers that this project's backends create. Each run is a fresh process that checks every byte; the rows
of a storage alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from checkpoint import expected_files, expected_tensors, make_or_reuse  # noqa: E402
from nginx_origin import NginxOrigin  # noqa: E402
from raw_programs import compiled  # noqa: E402
from report import Row, is_measured, table  # noqa: E402

from streamer import plugins  # noqa: E402
from streamer.core.store.sources import FileSource, HttpSource, NfsSource  # noqa: E402

RUN_TIMEOUT_S = 600
RAW_HTTP = {"raw curl 2 x 8 x 2 MiB": 2 << 20, "raw curl 2 x 8 x 8 MiB": 8 << 20}
RAW_FILE = {
    "raw buffered 2 x 8 MiB": ["--threads", "2", "--block", str(8 << 20)],
    "raw buffered 4 x 4 MiB": ["--threads", "4", "--block", str(4 << 20)],
}
RAW_NFS = {"raw libnfs 2 x 8 x 4 MiB": "2", "raw libnfs 4 x 8 x 4 MiB": "4"}


@dataclass(frozen=True)
class Place:
    """The checkpoint on a storage: its shards' URLs, and the options and environment to load them with."""

    uris: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    backend: str = "fsspec"
    imports: tuple[str, ...] = ()  # modules that its file system imports at the first use


@contextmanager
def on_path(shards: list[Path]) -> Iterator[Place]:
    yield Place([str(path) for path in shards], backend="posix")


@contextmanager
def on_s3(shards: list[Path]) -> Iterator[Place]:
    from servers.seaweedfs import SeaweedServer

    with SeaweedServer() as server:
        server.make_bucket("bench")
        uri = server.upload_folder(shards[0].parent, "bench", "model")
        yield Place([f"{uri}/{path.name}" for path in shards], server.storage_options(), backend="s3")


@contextmanager
def on_gs(shards: list[Path]) -> Iterator[Place]:
    from servers.gcs_emulator import GcsServer

    with GcsServer() as server:  # directly to the emulator: the gate in front of it is slow, because it is Python
        server.make_bucket("bench")
        uri = server.upload_folder(shards[0].parent, "bench", "model")
        options = {"endpoint_url": server.emulator_url, "token": "anon"}
        yield Place([f"{uri}/{path.name}" for path in shards], options, backend="gcs")


@contextmanager
def on_az(shards: list[Path]) -> Iterator[Place]:
    from servers.azurite import AzuriteServer

    with AzuriteServer() as server:
        server.make_container("bench")
        uri = server.upload_folder(shards[0].parent, "bench", "model")
        yield Place([f"{uri}/{path.name}" for path in shards], server.storage_options(), backend="azure")


@contextmanager
def on_http(shards: list[Path]) -> Iterator[Place]:
    with NginxOrigin(shards[0].parent) as origin:
        yield Place([f"{origin.http_url}/{path.name}" for path in shards], backend="http")


@contextmanager
def on_https(shards: list[Path]) -> Iterator[Place]:
    with NginxOrigin(shards[0].parent) as origin:
        yield Place([f"{origin.https_url}/{path.name}" for path in shards], {"verify": origin.ca_file}, backend="http")


@contextmanager
def on_http_without_ranges(shards: list[Path]) -> Iterator[Place]:
    from servers.nginx import NginxServer

    with NginxServer(shards[0].parent) as server:
        yield Place([f"{server.http_url}/whole/{path.name}" for path in shards], backend="http")


@contextmanager
def on_hf(shards: list[Path]) -> Iterator[Place]:
    """The stand-in for the Hub redirects to nginx, as the Hub does to its second host."""
    import hashlib
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    from servers.hub import HubServer

    with tempfile.TemporaryDirectory() as folder:
        for path in shards:
            (Path(folder) / hashlib.sha256(path.read_bytes()).hexdigest()).symlink_to(path)
        with NginxOrigin(folder) as origin, HubServer(origin.http_url) as server:
            server.upload_folder(shards[0].parent, "bench/model")
            for path in shards:  # the stand-in hashes a file at its first request, the Hub at its upload
                connection = HTTPConnection(urlsplit(server.url).netloc)
                connection.request("HEAD", f"/bench/model/resolve/main/{path.name}")
                connection.getresponse().read()
                connection.close()
            options = {"endpoint": server.url, "token": False}
            yield Place([f"hf://bench/model/{path.name}" for path in shards], options, backend="hf")


@contextmanager
def on_nfs(shards: list[Path]) -> Iterator[Place]:
    from servers.ganesha import NfsServer

    with NfsServer() as server:
        server.upload_folder(shards[0].parent, "model")
        yield Place([server.url(f"model/{path.name}") for path in shards], backend="nfs")


@contextmanager
def on_cache(shards: list[Path]) -> Iterator[Place]:
    with on_s3(shards) as place, tempfile.TemporaryDirectory() as folder:
        options = {"s3": place.options, "simplecache": {"cache_storage": folder}}
        yield Place([f"simplecache::{uri}" for uri in place.uris], options, imports=("s3fs",))


@contextmanager
def on_sqlite(shards: list[Path]) -> Iterator[Place]:
    """Use the example plug-in from its source folder; it opens the file for every statement."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(f"{folder}/models.db")
        database.execute("CREATE TABLE objects(name TEXT PRIMARY KEY, data BLOB, version INTEGER)")
        for path in shards:
            database.execute("INSERT INTO objects VALUES (?, ?, 1)", (f"model/{path.name}", path.read_bytes()))
        database.commit()
        database.close()
        site = Path(folder) / "site"
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
        subprocess.run([*command, str(HERE.parent / "plugins/example")], check=True)
        uris = [f"sqlite://{folder}/models.db/model/{path.name}" for path in shards]
        yield Place(uris, environment={"PYTHONPATH": str(site)})


PLACES: dict[str, Callable[[list[Path]], AbstractContextManager[Place]]] = {
    "path": on_path,
    "s3://": on_s3,
    "gs://": on_gs,
    "az://": on_az,
    "http://": on_http,
    "https://": on_https,
    "http:// without ranges": on_http_without_ranges,
    "hf://": on_hf,
    "nfs://": on_nfs,
    "simplecache::s3://": on_cache,
    "sqlite:// (example plug-in)": on_sqlite,
}


def raw_commands(place: Place) -> dict[str, list[str]]:
    """Return the raw readers of a place, with URLs and headers of its backend; an empty dict for Python sources."""
    sources, sizes = [], []
    for uri in place.uris:
        if "::" in uri or uri.startswith("sqlite"):
            return {}
        store = plugins.open_store(uri, place.options)
        info = store.info(store.root)
        sources.append(store.source(info))
        sizes.append(info.size_bytes)
    first = sources[0]
    if isinstance(first, HttpSource):
        headers = [text for name, value in first.headers.items() for text in ("--header", f"{name}: {value}")]
        authority = ["--cacert", first.ca_file] if first.ca_file else []
        urls = [f"{source.url}={size}" for source, size in zip(sources, sizes, strict=True)]  # type: ignore[union-attr]
        return {
            name: [compiled("raw_http_reader"), "--block", str(block), *headers, *authority, *urls]
            for name, block in RAW_HTTP.items()
        }
    if isinstance(first, NfsSource):
        urls = [f"{source.url}={size}" for source, size in zip(sources, sizes, strict=True)]  # type: ignore[union-attr]
        return {name: [compiled("raw_nfs_reader"), "--threads", threads, *urls] for name, threads in RAW_NFS.items()}
    if isinstance(first, FileSource):
        paths = [source.path for source in sources]  # type: ignore[union-attr]
        return {name: [compiled("raw_file_reader"), *how, *paths] for name, how in RAW_FILE.items()}
    return {}


class Bench:
    """Runs raw readers and this project on one place after the other."""

    def __init__(self, shards: list[Path], rounds: int) -> None:
        self._shards, self._rounds = shards, rounds
        self._expected_tensors, self._expected_files = expected_tensors(shards), expected_files(shards)
        self._touch_bytes = int(sum(path.stat().st_size for path in shards) * 1.05) + (256 << 20)

    def run(self, place: Place) -> list[Row]:
        """Alternate the rows of one storage."""
        raw = raw_commands(place)
        rows = {name: Row(name) for name in [*raw, "streamer load"]}
        for number in range(self._rounds):
            order = list(rows) if number % 2 else list(rows)[::-1]
            for name in order:
                self._run(rows[name], raw.get(name), place)
        return list(rows.values())

    def _run(self, row: Row, raw: list[str] | None, place: Place) -> None:
        if row.problem is not None:
            return
        expected = self._expected_tensors if raw is None else self._expected_files
        if raw is None:
            target = {"paths": place.uris, "options": place.options}
            command = [sys.executable, str(HERE / "run_one.py"), "streamer load"]
            imports = [f"streamer.backends.{place.backend}", *place.imports]
            request = json.dumps({"target": target, "touch_bytes": self._touch_bytes, "imports": imports})
        else:
            command, request = [raw[0], "--touch", str(self._touch_bytes), *raw[1:]], ""
        environment = {**os.environ, **place.environment}
        done = subprocess.run(
            command, input=request, env=environment, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S
        )
        if done.returncode != 0:
            row.problem = f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
            return
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        wrong = {name for name, value in expected.items() if figures[name] != value}
        row.problem = f"wrong: {wrong}" if wrong else None
        row.runs.append(figures)
        print(f"{row.name:28} {row.speeds()[-1]:6.2f} GB/s", file=sys.stderr, flush=True)


def summary(results: dict[str, list[Row]]) -> str:
    """Return one line for each storage: the limit, this project, and their ratio."""
    head = f"{'storage':28}{'raw':>8}{'load':>8}{'of raw':>8}{'CPU-s/GB':>10}{'raw CPU':>9}"
    lines = ["\nmedians, GB/s", head, "-" * len(head)]
    for name, rows in results.items():
        ours = next(row for row in rows if row.name == "streamer load")
        raws = [row for row in rows if row is not ours and is_measured(row)]
        best = max(raws, key=lambda row: row.median, default=None)
        if not is_measured(ours):
            lines.append(f"{name:28}{ours.problem or 'not run'}")
            continue
        raw = f"{best.median:8.2f}" if best else "       -"
        ratio = f"{ours.median / best.median:8.2f}" if best else "       -"
        cpu = f"{best.cpu_seconds_per_gb:9.2f}" if best else "        -"
        lines.append(f"{name:28}{raw}{ours.median:8.2f}{ratio}{ours.cpu_seconds_per_gb:10.2f}{cpu}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1 << 30, help="size of the checkpoint (default 1 GiB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="storages to run")
    arguments = parser.parse_args()
    folder = HERE.parent / ".bench" / f"storages-{arguments.bytes}" / "model"
    shards = make_or_reuse(folder.resolve(), arguments.bytes, 4)
    bench = Bench(shards, arguments.rounds)
    results: dict[str, list[Row]] = {}
    for name, open_place in PLACES.items():
        if not arguments.only.search(name):
            continue
        with open_place(shards) as place:
            results[name] = bench.run(place)
        print(table(name, results[name]), flush=True)
    print(summary(results))
    return int(any(row.problem is not None for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
