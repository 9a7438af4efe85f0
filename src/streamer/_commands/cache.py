"""The commands for a cache: ``cache path``, ``ls``, ``rm``, ``verify`` and ``warm``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamer._commands.output import (
    INTERRUPTED,
    TRY_AGAIN,
    WRONG_DATA,
    exit_code_of,
    parsed_options,
    print_line,
    print_table,
    report_failure,
)
from streamer.core.errors import ObjectNotFoundError, StreamerError, UsageError
from streamer.core.quoting import counted, printable, size_text
from streamer.core.secrets.redact import redact

if TYPE_CHECKING:
    from streamer._commands.warm import WarmReport
    from streamer.core.cache.folder import CacheFolder

_Command = TypeVar("_Command", bound=Callable[..., Any])

_folder_option = click.option(
    "--cache-dir", "cache_dir", metavar="DIR", help="The folder of the cache, in place of STREAMER_CACHE_DIR."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, also for an error.")


@click.group()
def cache() -> None:
    """Show, fill, check or empty the cache of this machine, which keeps what loads with STREAMER_CACHE_DIR read."""


def _reports_errors(command: _Command) -> _Command:
    """Let a command print its error as one line, or as JSON, and end with the exit code of the error."""

    @wraps(command)
    def run(**arguments: Any) -> None:
        as_json = bool(arguments.get("as_json"))
        try:
            code = command(**arguments)
        except KeyboardInterrupt:
            code = report_failure("interrupted; run the command again to continue", INTERRUPTED, None, as_json=as_json)
        except (StreamerError, OSError) as error:
            text = str(error)
            if isinstance(error, OSError) and error.strerror:  # without its number
                text = ": ".join(filter(None, (error.filename, error.strerror)))
            code = report_failure(text, exit_code_of(error), type(error).__name__, as_json=as_json)
        click.get_current_context().exit(code or 0)

    return run  # type: ignore[return-value]  # as the command, less what it returns


@cache.command("path")
@_folder_option
@_reports_errors
def print_path(*, cache_dir: str | None) -> None:
    """Print the folder of the cache.

    Example: python -m streamer cache path
    """
    print_line(_path(cache_dir))


@cache.command("ls")
@_folder_option
@_json_option
@_reports_errors
def list_objects(*, cache_dir: str | None, as_json: bool) -> None:
    """List the objects in the cache, the most recently used last.

    Example: python -m streamer cache ls --json
    """
    from streamer.core.cache.contents import contents  # noqa: PLC0415 (as needed)

    found = contents(_folder(cache_dir))
    if as_json:
        print_line(json.dumps([asdict(each) for each in found], indent=2))
        return
    rows = [("SIZE", "THERE", "LAST USED", "URI", "VERSION")]
    for each in found:
        share = f"{100 * each.held_bytes // each.bytes} %" if each.bytes else "-"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used_at))
        rows.append((size_text(each.bytes), share, used, each.uri or f"(damaged: {each.key})", each.version))
    print_table(rows)


@cache.command("rm")
@click.argument("uri", required=False)
@click.option("--all", "is_all", is_flag=True, help="Remove everything.")
@_folder_option
@_json_option
@_reports_errors
def remove_objects(*, uri: str | None, is_all: bool, cache_dir: str | None, as_json: bool) -> int:
    """Remove the object at URI, or all objects below it, from the cache. Objects in use by a process stay.

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
    if as_json:
        print_line(json.dumps({"removed": [each.uri for each in removed], "bytes": size_bytes, "in_use": kept}))
    else:
        in_use = f"; {counted(kept, 'object')} in use" if kept else ""
        print_line(f"{counted(len(removed), 'object')} removed, {size_text(size_bytes)}{in_use}")
    return TRY_AGAIN if kept else 0


@cache.command("verify")
@_folder_option
@_json_option
@_reports_errors
def verify_objects(*, cache_dir: str | None, as_json: bool) -> int:
    """Read everything in the cache, and drop damaged parts: the next load reads them from their storage.

    Exit codes: 0 nothing is damaged, 65 something was damaged.

    Example: python -m streamer cache verify
    """
    from streamer.core.cache.contents import check  # noqa: PLC0415 (as needed)

    damaged, checked_bytes = [], 0
    for content, damaged_bytes in check(_folder(cache_dir)):
        checked_bytes += content.held_bytes
        if damaged_bytes:
            damaged.append({"uri": content.uri, "version": content.version, "damaged_bytes": damaged_bytes})
            if not as_json:
                print_line(printable(f"{content.uri}: {size_text(damaged_bytes)} damaged, and dropped"))
    if as_json:
        print_line(json.dumps({"checked_bytes": checked_bytes, "damaged": damaged}))
    else:
        print_line(f"{size_text(checked_bytes)} read, {counted(len(damaged), 'object')} damaged")
    return WRONG_DATA if damaged else 0


@cache.command("warm")
@click.argument("uri")
@_folder_option
@click.option("--storage-options", "storage_options", metavar="JSON", help="As for the command manifest.")
@click.option("--quiet", is_flag=True, help="Show no progress and no summary.")
@_json_option
@_reports_errors
def warm_checkpoint(
    *, uri: str, cache_dir: str | None, storage_options: str | None, quiet: bool, as_json: bool
) -> None:
    """Read the parts of the checkpoint at URI that the cache lacks. Exit codes: as for pull.

    Example: python -m streamer cache warm s3://bucket/model
    """
    from streamer._commands.warm import warm  # noqa: PLC0415 (as needed)
    from streamer.core.options.options import Options  # noqa: PLC0415 (as needed)
    from streamer.core.request.request import Request  # noqa: PLC0415 (as needed)

    options = Options(cache_dir=_path(cache_dir))
    progress = False if quiet or as_json else None
    report = warm(Request(uri=uri, storage_options=parsed_options(storage_options), options=options, progress=progress))
    if as_json:
        print_line(json.dumps(report.to_dict()))
    elif not quiet:
        print_line(_summary(report))


def _summary(report: WarmReport) -> str:
    read = f"{size_text(report.read_bytes)} of them read in {report.seconds:.2f} s"
    return printable(f"{report.uri}: {counted(report.shards, 'shard')}, {size_text(report.bytes)} in the cache, {read}")


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
