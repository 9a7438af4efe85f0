"""The commands ``pull``, ``push`` and ``copy``: their arguments, progress, output and exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from streamer._commands.output import (
    INTERRUPTED,
    TERMINATED,
    copy_options,
    exit_code_of,
    parsed_options,
    print_line,
    reason_of,
    report_failure,
    say,
)
from streamer.core.errors import StreamerError
from streamer.core.quoting import counted, printable, size_text

if TYPE_CHECKING:
    from streamer._pull.record import PullReport
    from streamer._push.push import Target
    from streamer._push.report import PushReport
    from streamer.core.request.request import ProgressOption

SHOWN_EVERY_S = 10.0  # one line of progress in the log of a container


class CopyReport(Protocol):
    """What a command that copies files has done."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""


Report = TypeVar("Report", bound=CopyReport)


class _TerminatedError(BaseException):
    """SIGTERM was received: kubectl and Docker send it first, and SIGKILL later."""


@click.command("pull")
@click.argument("uri")
@click.argument("folder", type=click.Path(file_okay=False), metavar="DIR")
@copy_options
@click.option("--check", is_flag=True, help="Read files that are there already, and pull those that changed again.")
@click.option("--key-file", help="The key, as of the command check: all files that may hold tensors must be encrypted.")
@click.option("--key-context", help="As of the command check.")
@click.option("--storage-options", "storage_options", metavar="JSON", help="As of the command manifest.")
@click.pass_context
def pull_folder(
    context: click.Context,
    /,
    uri: str,
    folder: str,
    *,
    storage_options: str | None,
    as_json: bool,
    quiet: bool,
    **wanted: Any,
) -> None:
    """Copy the file at URI, or all files below URI, into the folder DIR.

    The files appear in DIR when all of them are complete. If the command is run again, it continues where it
    stopped, and reads nothing if everything is there. A pattern is of the name relative to URI; its * matches slashes,
    too. Encrypted files are copied as they are. With their key, every byte of them is authenticated before they appear,
    and a file that may hold tensors and is not encrypted is refused: leave it out with --exclude.

    Exit codes: 0 all there, 2 usage, 65 wrong data, 66 not found, 69 storage unavailable, 73 disk full or not
    writable, 75 changed meanwhile (try again), 76 TLS or protocol, 77 access denied, 130 and 143 interrupted.

    Example: python -m streamer pull s3://bucket/model /mnt/models --include '*.safetensors' --include '*.json'
    """
    if not folder:
        raise click.BadParameter("the name is empty; write . for the working directory", param_hint="DIR")
    from streamer._pull.pull import pull  # noqa: PLC0415 (as needed)
    from streamer._pull.record import PullArguments  # noqa: PLC0415 (as needed)

    chosen = PullArguments(
        include=wanted["include"],
        exclude=wanted["exclude"],
        is_verified=not wanted["no_verify"],
        is_checked=wanted["check"],
        replaces=wanted["replace"],
        key=wanted["key_file"],
        context=wanted["key_context"],
        storage_options=parsed_options(storage_options),
    )
    tell = _ignore if quiet else say
    code = _run_copy(
        lambda progress: pull(uri, folder, chosen, progress=progress, on_wait=tell),
        _summary_of_pull,
        as_json=as_json,
        is_quiet=quiet,
    )
    context.exit(code)


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
    from streamer._push.push import Target  # noqa: PLC0415 (as needed)

    target = Target(uri, parsed_options(storage_options))
    context.exit(_push(folder, target, None, asked))


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
    from streamer._push.push import Target  # noqa: PLC0415 (as needed)

    target = Target(uri, parsed_options(target_options, "--to-options"))
    context.exit(_push(source, target, parsed_options(source_options, "--from-options"), asked))


def _push(source: str, target: Target, source_options: dict[str, Any] | None, asked: dict[str, Any]) -> int:
    from streamer._pull.record import PullArguments  # noqa: PLC0415 (as needed)
    from streamer._push.push import push  # noqa: PLC0415 (as needed)

    wanted = PullArguments(
        include=asked["include"],
        exclude=asked["exclude"],
        is_verified=not asked["no_verify"],
        replaces=asked["replace"],
        storage_options=source_options,
        key=asked.get("key_file"),
        context=asked.get("key_context"),
    )
    return _run_copy(
        lambda progress: push(source, target, wanted, progress=progress),
        _summary_of_push,
        as_json=asked["as_json"],
        is_quiet=asked["quiet"],
    )


def _run_copy(
    copy: Callable[[ProgressOption], Report], summary: Callable[[Report], str], *, as_json: bool, is_quiet: bool
) -> int:
    """Copy files, print the result, and return the exit code."""
    tell = _ignore if is_quiet else say
    try:
        with _terminable():
            report = copy(_progress(tell, is_quiet=is_quiet))
    except KeyboardInterrupt:
        return report_failure("interrupted; run the command again to continue", INTERRUPTED, None, as_json=as_json)
    except _TerminatedError:
        return report_failure("terminated; run the command again to continue", TERMINATED, None, as_json=as_json)
    except (StreamerError, OSError) as error:
        kind, reason = type(error).__name__, reason_of(error)
        return report_failure(_text_of(error), exit_code_of(error), kind, as_json=as_json, reason=reason)
    if as_json:
        print_line(json.dumps(report.to_dict()))
    elif not is_quiet:
        print_line(summary(report))
    return 0


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; by default, process 1 of a container ignores it."""

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress(tell: Callable[[str], None], *, is_quiet: bool) -> ProgressOption:
    """Return a bar on a terminal; elsewhere, a function that prints a line at intervals."""
    if is_quiet or sys.stderr is None:  # None: the parent process closed it
        return False
    from streamer._progress import is_terminal  # noqa: PLC0415 (as needed)

    if is_terminal():
        return True
    next_at = time.monotonic() + SHOWN_EVERY_S

    def show(done_bytes: int, total_bytes: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + SHOWN_EVERY_S
            tell(f"{size_text(done_bytes)} of {size_text(total_bytes)}")

    return show


def _summary_of_pull(report: PullReport) -> str:
    told = "which {} has in another version and the patterns leave out", "which is not in {}"
    lines = [f"removed {each}, {told[each not in report.replaced].format(report.uri)}" for each in report.removed]
    there = f"{counted(report.files, 'file')}, {size_text(report.bytes)}, all there{_kept(report.kept_files)}"
    read = f"{size_text(report.read_bytes)} read in {report.seconds:.1f} s"
    number = {0: "none", report.files: "each"}.get(report.verified_files, f"{report.verified_files} of them")
    verified = f"{number} compared with a digest of the storage"
    authenticated = (
        f", {counted(report.authenticated_files, 'file')} authenticated" if report.authenticated_files else ""
    )
    lines.append(f"{report.folder}: {there}; {read}, {verified}{authenticated}")
    return "\n".join(map(printable, lines))


def _summary_of_push(report: PushReport) -> str:
    there = f"{counted(report.files, 'file')}, {size_text(report.bytes)}, all there{_kept(report.kept_files)}"
    sent = f"{size_text(report.sent_bytes)} sent in {report.seconds:.1f} s"
    keyed = f", {counted(report.authenticated_files, 'file')} authenticated" if report.authenticated_files else ""
    lines = [f"removed {each} of an older checkpoint" for each in report.removed]
    lines.append(f"{report.uri}: {there}; {sent}{keyed}")
    return "\n".join(map(printable, lines))


def _kept(files: int) -> str:
    return f", {files} of them from before" if files else ""


def _text_of(error: BaseException) -> str:
    if isinstance(error, StreamerError) or not isinstance(error, OSError) or not error.filename:
        return str(error)
    if error.errno == errno.ENOSPC:
        return f"{os.fsdecode(error.filename)}: {error.strerror}. Free some: the next run continues"
    return f"{os.fsdecode(error.filename)} cannot be made or written: {error.strerror}"


def _ignore(_text: str) -> None:
    pass
