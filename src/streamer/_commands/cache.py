"""The commands for a cache: ``cache path``, ``ls``, ``rm``, ``verify``, ``warm`` and ``serve``."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from streamer._commands.output import TRY_AGAIN, WRONG_DATA, Output, continues, print_line, storage_options, table
from streamer.core.conditions import Event
from streamer.core.errors import ObjectNotFoundError, OptionError, UsageError
from streamer.core.quoting import counted, printable, size_text
from streamer.core.secrets.redact import redact

if TYPE_CHECKING:
    from streamer.core.cache.folder import CacheFolder

LOOK_S = 1.0  # between two looks at the token of the peers
_folder_option = click.option("--cache-dir", metavar="DIR", help="The folder, in place of STREAMER_CACHE_DIR.")


@click.group()
def cache() -> None:
    """Show, fill, check or empty the cache of this machine.

    The cache keeps what loads with STREAMER_CACHE_DIR read.
    """


@cache.command("path")
@_folder_option
@continues
def print_path(*, cache_dir: str | None, output: Output) -> None:
    """Print the folder of the cache.

    Example: python -m streamer cache path
    """
    path = _path(cache_dir)
    output.show({"path": path}, path, path)


@cache.command("ls")
@_folder_option
@continues
def list_objects(*, cache_dir: str | None, output: Output) -> None:
    """List the objects in the cache, the most recently used last.

    Example: python -m streamer cache ls --json
    """
    from streamer.core.cache.contents import contents  # noqa: PLC0415 (as needed)

    found = contents(_folder(cache_dir))
    rows = [("SIZE", "THERE", "LAST USED", "URI", "VERSION")]
    for each in found:
        share = f"{100 * each.held_bytes // each.bytes} %" if each.bytes else "-"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used_at))
        rows.append((size_text(each.bytes), share, used, each.uri or f"(damaged: {each.key})", each.version))
    output.show([asdict(each) for each in found], lambda: table(rows), "\n".join(printable(each.uri) for each in found))


@cache.command("rm")
@click.argument("uri", required=False)
@click.option("--all", "is_all", is_flag=True, help="Remove everything.")
@_folder_option
@continues
def remove_objects(*, uri: str | None, is_all: bool, cache_dir: str | None, output: Output) -> int:
    """Remove objects from the cache.

    The object at URI is removed, or all objects below it. Objects in use by a process stay.

    Exit codes: 0 removed, 66 no such object, 75 some are in use.

    Example: python -m streamer cache rm s3://bucket/model
    """
    from streamer.core.cache.contents import contents, is_named  # noqa: PLC0415 (as needed)

    if (uri is None) != is_all:
        raise UsageError("name a URI, or pass --all to remove everything")
    folder = _folder(cache_dir)
    named = [each for each in contents(folder) if is_all or is_named(each, uri or "")]
    if uri is not None and not named:
        hint = "`python -m streamer cache ls` lists its objects"
        raise ObjectNotFoundError("the cache holds no object at or below this URI", uri=redact(uri), hint=hint)
    removed = [each for each in named if folder.remove(each.key)]
    kept = len(named) - len(removed)
    size_bytes = sum(each.disk_bytes for each in removed)
    in_use = f"; {counted(kept, 'object')} in use" if kept else ""
    text = f"{counted(len(removed), 'object')} removed, {size_text(size_bytes)}{in_use}"
    output.show({"removed": [each.uri for each in removed], "bytes": size_bytes, "in_use": kept}, text)
    return TRY_AGAIN if kept else 0


@cache.command("verify")
@_folder_option
@continues
def verify_objects(*, cache_dir: str | None, output: Output) -> int:
    """Read everything in the cache, and drop damaged parts.

    The next load reads these from their storage.

    Exit codes: 0 nothing is damaged, 65 something was damaged.

    Example: python -m streamer cache verify
    """
    from streamer.core.cache.contents import check  # noqa: PLC0415 (as needed)

    damaged, checked_bytes = [], 0
    for content, damaged_bytes in check(_folder(cache_dir)):
        checked_bytes += content.held_bytes
        if damaged_bytes:
            damaged.append({"uri": content.uri, "version": content.version, "damaged_bytes": damaged_bytes})
            if not (output.as_json or output.is_quiet):
                print_line(printable(f"{content.uri}: {size_text(damaged_bytes)} damaged, and dropped"))
    text = f"{size_text(checked_bytes)} read, {counted(len(damaged), 'object')} damaged"
    output.show({"checked_bytes": checked_bytes, "damaged": damaged}, text)
    return WRONG_DATA if damaged else 0


@cache.command("warm")
@click.argument("uri")
@_folder_option
@storage_options()
@continues
def warm_checkpoint(*, uri: str, cache_dir: str | None, storage_options: dict[str, Any] | None, output: Output) -> None:
    """Read the parts of a checkpoint that the cache lacks.

    Exit codes: as for pull.

    Example: python -m streamer cache warm s3://bucket/model
    """
    from streamer._commands.warm import warm  # noqa: PLC0415 (as needed)
    from streamer.core.options.options import Options  # noqa: PLC0415 (as needed)
    from streamer.core.request.request import Request  # noqa: PLC0415 (as needed)

    options = Options(cache_dir=_path(cache_dir))
    report = warm(Request(uri=uri, storage_options=storage_options, options=options, progress=output.progress()))
    there = f"{counted(report.shards, 'shard')}, {size_text(report.bytes)} in the cache"
    read = f"{size_text(report.read_bytes)} of them read in {report.seconds:.2f} s"
    output.show(asdict(report), printable(f"{report.uri}: {there}, {read}"))


@cache.command("serve")
@click.option("--host", default="", help="Address to listen on; all, if it is not given.")
@click.option("--port", type=click.IntRange(0, 65535), help="0: any. If not given: of STREAMER_PEERS, or 7070.")
@click.option("--token-file", metavar="FILE", help="The peers' token, in place of STREAMER_PEERS_TOKEN.")
@click.option("--max-bytes-per-second", metavar="BYTES", help="Most that is sent in a second, as 500MB.")
@_folder_option
@continues
def serve_peers(
    *,
    host: str,
    port: int | None,
    token_file: str | None,
    max_bytes_per_second: str | None,
    cache_dir: str | None,
    output: Output,
) -> None:
    """Give the bytes of the cache to peers that have the token.

    Loads with STREAMER_PEERS do this by themselves. This runs until it is ended: for a node whose program ends before.
    If STREAMER_PEERS is a TCPStore, the address is announced there.

    Example: python -m streamer cache serve --port 7070
    """
    from streamer.core.options.options import Options  # noqa: PLC0415 (as needed)
    from streamer.core.options.settings import resolve  # noqa: PLC0415 (as needed)
    from streamer.core.peers.discovery import PORT, announce, own_ports  # noqa: PLC0415 (as needed)
    from streamer.core.peers.names import token_of  # noqa: PLC0415 (as needed)
    from streamer.core.peers.server import PeerServer  # noqa: PLC0415 (as needed)

    rate: Any = max_bytes_per_second
    settings = resolve(Options(max_serving_bytes_per_second=rate))
    path, stopped, peers = _path(cache_dir), Event(), settings.peers or ()
    if port is None:
        port = next(iter(own_ports(peers)), PORT)
    server = PeerServer(path, host, port, token_of(token_file), settings.max_serving_bytes_per_second or 0)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        announce(peers, server.port)
        output.show({"address": server.address, "path": path}, f"serving {path} at {server.address}", server.address)
        sys.stdout.flush()
        while not stopped.wait(LOOK_S):
            with suppress(OptionError):  # the file is being replaced
                server.use_token(token_of(token_file))
    finally:
        server.close()


def _path(cache_dir: str | None) -> str:
    from streamer.core.cache.folder import absolute_path  # noqa: PLC0415 (as needed)
    from streamer.core.options.options import Options  # noqa: PLC0415 (as needed)
    from streamer.core.options.settings import resolve  # noqa: PLC0415 (as needed)

    path = resolve(Options(cache_dir=cache_dir or None)).cache_dir
    if not path:
        raise UsageError("no cache folder is set", hint="Set STREAMER_CACHE_DIR, or pass --cache-dir")
    return absolute_path(os.fspath(path))


def _folder(cache_dir: str | None) -> CacheFolder:
    from streamer.core.cache.folder import CacheFolder  # noqa: PLC0415 (as needed)

    path = _path(cache_dir)
    try:
        return CacheFolder.opened(path, makes=False)
    except FileNotFoundError as error:
        hint = "`python -m streamer cache warm URI` creates it, and so does a load with this folder as cache_dir"
        raise ObjectNotFoundError("there is no cache: no load has created it yet", uri=path, hint=hint) from error
