"""The commands ``python -m streamer push`` and ``copy``: their arguments, and the summary that they print."""

from __future__ import annotations

import os
from typing import Any

import click

from streamer._command_line.options import copy_options, parsed_options
from streamer._pull.command import run_copy
from streamer._pull.record import Wanted
from streamer._push.push import Target, push
from streamer._push.report import PushReport
from streamer.core.quoting import counted, printable, size_text

__all__ = ["copy_files", "push_folder"]


@click.command("push")
@click.argument("folder", metavar="DIR")
@click.argument("uri")
@copy_options
@click.option(
    "--key-file", help="As of the command pull: send nothing if a file that may hold tensors is not encrypted."
)
@click.option("--key-context", help="As of the command check.")
@click.option("--storage-options", "storage_options", metavar="JSON", help="As for the command manifest.")
@click.pass_context
def push_folder(context: click.Context, /, folder: str, uri: str, *, storage_options: str | None, **asked: Any) -> None:
    """Copy the file DIR, or all files of the folder DIR, to URI.

    URI is a folder. If DIR is a file, and the last name of URI has the same suffix, URI is the name of the new file.
    With a slash at its end, URI is always a folder.

    The index of a checkpoint shows up last, so that a load finds the whole checkpoint or none. If the command is run
    again, it continues where it stopped, and sends nothing if all files are there. Without --replace, it replaces no
    file that has other content, and writes no weights beside others that a load of the folder would read.

    Exit codes: as for pull.

    Example: python -m streamer push /mnt/trained s3://bucket/model --exclude '*optimizer*'
    """
    if not os.path.exists(folder):
        copy = "push copies from a disk; between two URLs: python -m streamer copy"
        what = copy if "://" in folder else f"there is no file or folder {folder!r}"
        raise click.BadParameter(what, param_hint="DIR")
    target = Target(uri, parsed_options(storage_options))
    context.exit(_run(folder, target, None, asked))


@click.command("copy")
@click.argument("source", metavar="URI")
@click.argument("uri", metavar="URI")
@copy_options
@click.option("--from-options", "source_options", metavar="JSON", help="Storage options of the first URI.")
@click.option("--to-options", "target_options", metavar="JSON", help="Storage options of the second URI.")
@click.pass_context
def copy_files(
    context: click.Context,
    /,
    source: str,
    uri: str,
    *,
    source_options: str | None,
    target_options: str | None,
    **asked: Any,
) -> None:
    """Copy the file at the first URI, or all files below it, to the second URI, without a disk between them.

    The second URI is a folder, or the name of the new file, as for push. Files are compared with the digests of both
    storages. As with push, a second run continues the first, the index shows up last, and no file is replaced without
    --replace.

    Exit codes: as for pull.

    Example: python -m streamer copy hf://org/model s3://bucket/model --include '*.safetensors' --include '*.json'
    """
    target = Target(uri, parsed_options(target_options, "--to-options"))
    context.exit(_run(source, target, parsed_options(source_options, "--from-options"), asked))


def _run(source: str, target: Target, source_options: dict[str, Any] | None, asked: dict[str, Any]) -> int:
    wanted = Wanted(
        include=asked["include"],
        exclude=asked["exclude"],
        is_verified=not asked["no_verify"],
        replaces=asked["replace"],
        storage_options=source_options,
        key=asked.get("key_file"),
        context=asked.get("key_context"),
    )
    return run_copy(
        lambda progress: push(source, target, wanted, progress=progress),
        _summary,
        as_json=asked["as_json"],
        is_quiet=asked["quiet"],
    )


def _summary(report: PushReport) -> str:
    there = f"{counted(report.files, 'file')}, {size_text(report.bytes)}, all there"
    kept = f", {report.kept_files} of them from before" if report.kept_files else ""
    sent = f"{size_text(report.sent_bytes)} sent in {report.seconds:.1f} s"
    keyed = f", {counted(report.authenticated_files, 'file')} authenticated" if report.authenticated_files else ""
    lines = [f"removed {each} of an older checkpoint" for each in report.removed]
    lines.append(f"{report.uri}: {there}{kept}; {sent}{keyed}")
    return "\n".join(map(printable, lines))
