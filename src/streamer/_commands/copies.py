"""The commands ``pull``, ``push``, ``copy`` and ``publish``: their arguments, and the text of their reports."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamer._commands.output import Output, continues, selecting, storage_options
from streamer.core.quoting import counted, printable, printable_lines, size_text

if TYPE_CHECKING:
    from streamer._pull.record import CopyPlan, PullArguments, PullReport
    from streamer._push.push import Target
    from streamer._push.report import PushReport

Command = TypeVar("Command", bound=Callable[..., Any])


def copying(command: Command) -> Command:
    """Add what ``pull``, ``push`` and ``copy`` have in common to a command."""
    for option in (
        click.option("--limit-rate", metavar="SIZE", help="Read at most so many bytes in a second: 100MB."),
        click.option("--dry-run", is_flag=True, help="List what would be copied and removed, and write nothing."),
        click.option("--no-verify", is_flag=True, help="Do not compare files with the digests that the storage keeps."),
        click.option("--replace", is_flag=True, help="Replace an older checkpoint; its files are removed last."),
        selecting,
    ):
        command = option(command)
    return command


@click.command("pull")
@click.argument("uri")
@click.argument("folder", type=click.Path(file_okay=False), metavar="DIR")
@copying
@click.option("--check", is_flag=True, help="Read files that are there already, and pull those that changed again.")
@click.option("--key-file", help="The key, as of the command check: all files that may hold tensors must be encrypted.")
@click.option("--key-context", help="As of the command check.")
@storage_options()
@continues
def pull_folder(uri: str, folder: str, *, output: Output, **asked: Any) -> None:
    """Copy files from a storage to a disk, all of them or none.

    The file at URI, or all files below URI, are copied into the folder DIR. They appear in DIR when all of them are
    complete. If the command is run again, it continues where it stopped, and reads nothing if everything is there. A
    pattern is of the name relative to URI; its * matches slashes, too. Encrypted files are copied as they are. With
    their key, every byte of them is authenticated before they appear, and a file that may hold tensors and is not
    encrypted is refused: leave it out with --exclude.

    Exit codes: 0 all there, 2 usage, 65 wrong data, 66 not found, 69 storage unavailable, 73 disk full or not
    writable, 75 changed meanwhile (try again), 76 TLS or protocol, 77 access denied, 130 and 143 interrupted.

    Example: python -m streamer pull s3://bucket/model /mnt/models --include '*.safetensors' --include '*.json'
    """
    if not folder:
        raise click.BadParameter("the name is empty; write . for the working directory", param_hint="DIR")
    from streamer._pull.pull import plan_pull, pull  # noqa: PLC0415 (as needed)

    wanted = _arguments(asked, asked["storage_options"])
    if asked["dry_run"]:
        _show_plan(plan_pull(uri, folder, wanted), output)
        return
    report = pull(uri, folder, wanted, progress=output.progress(), on_wait=output.tell)
    output.show(report.to_dict(), lambda: _summary_of_pull(report))


@click.command("push")
@click.argument("folder", metavar="DIR")
@click.argument("uri")
@copying
@click.option("--key-file", help="As of pull: send nothing if a file that may hold tensors is not encrypted.")
@click.option("--key-context", help="As of the command check.")
@storage_options()
@continues
def push_folder(folder: str, uri: str, *, output: Output, **asked: Any) -> None:
    """Copy files from a disk to a storage, its index last.

    The file DIR, or all files of the folder DIR, are copied to URI. URI is a folder. If DIR is a file, and the last
    name of URI has the same suffix, URI is the name of the new file. With a slash at its end, URI is always a folder.

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
    from streamer._push.push import Target  # noqa: PLC0415 (as needed)

    _push(folder, Target(uri, asked["storage_options"]), _arguments(asked, None), output, is_dry=asked["dry_run"])


@click.command("copy")
@click.argument("source", metavar="URI")
@click.argument("uri", metavar="URI")
@copying
@storage_options("from", "the first URI")
@storage_options("to", "the second URI")
@continues
def copy_files(source: str, uri: str, *, output: Output, **asked: Any) -> None:
    """Copy files from one storage to another; cp is its short name.

    The file at the first URI, or all files below it, are copied to the second URI, without a disk between them. The
    second URI is a folder, or the name of the new file, as for push. Files are compared with the digests of both
    storages. As with push, a second run continues the first, the index shows up last, and no file is replaced without
    --replace.

    Exit codes: as for pull.

    Example: python -m streamer copy hf://org/model s3://bucket/model --include '*.safetensors' --include '*.json'
    """
    from streamer._push.push import Target  # noqa: PLC0415 (as needed)

    wanted = _arguments(asked, asked["from_options"])
    _push(source, Target(uri, asked["to_options"]), wanted, output, is_dry=asked["dry_run"])


@click.command("publish")
@click.argument("source")
@click.argument("uri")
@click.option("--keep", type=click.IntRange(min=1), help="Remove all but the last so many versions.")
@click.option("--grace", "grace_s", default=3600.0, show_default=True, help="Seconds that a replaced version stays.")
@storage_options()
@continues
def publish_folder(source: str, uri: str, *, output: Output, **how: Any) -> None:
    """Copy a folder to a new version, and let URI@latest name it.

    The folder SOURCE is copied to a new version below URI. Exit codes: as for pull.

    Example: python -m streamer publish /mnt/trained s3://bucket/run --keep 3
    """
    from streamer._push.publish import publish  # noqa: PLC0415 (as needed)

    report = publish(source, uri, progress=output.progress(), **how)
    removed = f"; removed {', '.join(report.removed)}" if report.removed else ""
    output.show(report.to_dict(), printable(f"published {report.uri}{removed}"), report.uri)


def _arguments(asked: dict[str, Any], source_options: dict[str, Any] | None) -> PullArguments:
    from streamer._pull.record import PullArguments  # noqa: PLC0415 (as needed)
    from streamer.core.options.options import Options  # noqa: PLC0415 (as needed)

    rate = asked["limit_rate"]
    return PullArguments(
        include=asked["include"],
        exclude=asked["exclude"],
        is_verified=not asked["no_verify"],
        is_checked=asked.get("check", False),
        replaces=asked["replace"],
        key=asked.get("key_file"),
        context=asked.get("key_context"),
        storage_options=source_options,
        options=None if rate is None else Options(max_bytes_per_second=rate),
    )


def _push(source: str, target: Target, wanted: PullArguments, output: Output, *, is_dry: bool) -> None:
    from streamer._push.push import plan_push, push  # noqa: PLC0415 (as needed)

    if is_dry:
        _show_plan(plan_push(source, target, wanted), output)
        return
    report = push(source, target, wanted, progress=output.progress())
    output.show(report.to_dict(), lambda: _summary_of_push(report))


def _show_plan(plan: CopyPlan, output: Output) -> None:
    lines = [f"copy    {name}  {size_text(size_bytes)}" for name, size_bytes in plan.copied.items()]
    lines += [f"remove  {name}" for name in plan.removed]
    more = f", {counted(plan.kept_files, 'file')} there already" if plan.kept_files else ""
    size = f"{counted(len(plan.copied), 'file')}, {size_text(sum(plan.copied.values()))}"
    lines.append(f"{size} to copy to {plan.target}{more}; nothing was written")
    output.show(plan.to_dict(), lambda: printable_lines(lines), printable_lines(plan.copied))


def _summary_of_pull(report: PullReport) -> str:
    told = "which {} has in another version and the patterns leave out", "which is not in {}"
    lines = [f"removed {each}, {told[each not in report.replaced].format(report.uri)}" for each in report.removed]
    number = {0: "none", report.files: "each"}.get(report.verified_files, f"{report.verified_files} of them")
    read = f"{size_text(report.read_bytes)} read in {report.seconds:.1f} s"
    lines.append(_summary(report.folder, report, f"{read}, {number} compared with a digest of the storage"))
    return printable_lines(lines)


def _summary_of_push(report: PushReport) -> str:
    lines = [f"removed {each} of an older checkpoint" for each in report.removed]
    lines.append(_summary(report.uri, report, f"{size_text(report.sent_bytes)} sent in {report.seconds:.1f} s"))
    return printable_lines(lines)


def _summary(place: str, report: PullReport | PushReport, moved: str) -> str:
    kept = f", {report.kept_files} of them from before" if report.kept_files else ""
    keyed = f", {counted(report.authenticated_files, 'file')} authenticated" if report.authenticated_files else ""
    return f"{place}: {counted(report.files, 'file')}, {size_text(report.bytes)}, all there{kept}; {moved}{keyed}"
