"""The commands that look at checkpoints: ``inspect``, ``ls``, ``check``, ``diff``, ``manifest`` and ``versions``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from streamer._commands.output import DIFFERENT, Output, answers, exit_code_of, keyed, selecting, storage_options, table
from streamer.core.errors import EncryptionKeyError, StreamerError
from streamer.core.quoting import counted, printable, printable_lines, size_text

if TYPE_CHECKING:
    from streamer._commands.differences import CheckedFiles
    from streamer.core.request.request import Request

KEY_VARIABLE = "STREAMER_KEY"


@click.command("inspect")
@click.argument("uri")
@click.option("--tree", "as_tree", is_flag=True, help="Sum up the tensors by module.")
@keyed
@storage_options()
@answers
def inspect_checkpoint(uri: str, *, as_tree: bool, output: Output, **asked: Any) -> None:
    """List the tensors of a checkpoint: dtype, shape, size, shard.

    Only headers are read, mostly with one request for each shard, and of every format that a load reads. Exit codes:
    as for pull.

    Example: python -m streamer inspect hf://org/model --tree
    """
    from streamer._commands.contents import inspect  # noqa: PLC0415 (as needed)

    with _hints_about_keys(asked["key_file"]):
        found = inspect(_request(uri, "storage_options", asked))
    names = "\n".join(printable(row.name) for row in found.tensors)
    rows = found.tree if as_tree else found.rows
    output.show(found.to_dict(), lambda: f"{table(rows())}\n{found.summary()}", names)


@click.command("ls")
@click.argument("uri")
@selecting
@storage_options()
@answers
def list_objects(uri: str, *, output: Output, storage_options: dict[str, Any] | None, **patterns: Any) -> None:
    """List the files below a URI: size, version, name.

    These are the files that pull would copy, with those in sub-folders. Exit codes: as for pull.

    Example: python -m streamer ls s3://bucket/model --include '*.safetensors'
    """
    from streamer._commands.contents import list_files  # noqa: PLC0415 (as needed)

    found = list_files(uri, storage_options, **patterns)
    rows = [("SIZE", "VERSION", "NAME")]
    for name, info in found.items():
        rows.append(("-" if info.size_bytes is None else size_text(info.size_bytes), info.version or "-", name))
    values = [{"name": name, "bytes": info.size_bytes, "version": info.version} for name, info in found.items()]
    output.show(values, lambda: table(rows), printable_lines(found))


@click.command("check")
@click.argument("uri")
@click.argument("other", required=False, metavar="[URI]")
@keyed
@click.option("--full", "in_full", is_flag=True, help="Read every tensor, too.")
@selecting
@click.option("--size-only", "by_size", is_flag=True, help="Of two URIs: compare the sizes of files alone.")
@click.option("--combined", metavar="FILE", help="Of two URIs: write a line for each file, also if equal; - prints it.")
@storage_options()
@storage_options("to", "the second URI")
@answers
def check_checkpoint(uri: str, other: str | None, *, output: Output, **asked: Any) -> int:
    """Check a checkpoint, or compare the files of two URIs.

    With one URI, it checks the headers, the index against the shards, and the manifest. What would make a load fail
    makes it fail, before a server starts. It reads no weights, unless --full is given. With a key, the headers must be
    as they were saved, and with --full every byte of the tensors, too. Without a key, --full compares the bytes with
    the manifest, or with the digests that the storage keeps. Without --key-file, STREAMER_KEY is used if it is set.
    With a key, a checkpoint that is not encrypted is refused. Exit codes as of pull.

    With two URIs, it compares all files below them. It prints a line for each file that is not equal: + only below the
    first, - only below the second, * different, ! not compared because of an error; with --combined, also = for equal
    files. Files are compared by the digests that their storages keep; if that is not possible, they are read. Exit code
    1 if any differs.

    Examples: python -m streamer check s3://bucket/model --full --key-file weights.key

    python -m streamer check /mnt/trained s3://bucket/model --combined -
    """
    of_one = {"--full": asked["in_full"], "--key-file": asked["key_file"], "--key-context": asked["key_context"]}
    of_two = {f"--{name}": asked[name] for name in ("include", "exclude", "combined")}
    of_two |= {"--size-only": asked["by_size"], "--to-options": asked["to_options"]}
    wrong = next((name for name, value in (of_two if other is None else of_one).items() if value), None)
    if wrong:
        raise click.UsageError(f"{wrong} is for {'two URIs' if other is None else 'one URI'}")
    if other is not None:
        return _compare(uri, other, asked, output)
    from streamer._check import check  # noqa: PLC0415 (as needed)

    with _hints_about_keys(asked["key_file"]):
        key = {"key": _key(asked["key_file"]), "context": asked["key_context"], "in_full": asked["in_full"]}
        report = check(uri, storage_options=asked["storage_options"], progress=output.progress(), **key)
    output.show(report.to_dict(), printable(str(report)))
    return 0


def _compare(uri: str, other: str, asked: dict[str, Any], output: Output) -> int:
    from streamer._commands.differences import check_files  # noqa: PLC0415 (as needed)

    places = (uri, asked["storage_options"]), (other, asked["to_options"])
    report = check_files(*places, asked["include"], asked["exclude"], by_size=asked["by_size"])
    for error in report.errors.values():
        output.tell(f"Error: {error}")
    _show_files(report, asked["combined"], output)
    if any(sign in "+-*" for sign in report.signs.values()):
        return DIFFERENT
    return exit_code_of(report.worst) if report.worst else 0


def _show_files(report: CheckedFiles, combined: str | None, output: Output) -> None:
    if combined and combined != "-":
        with open(combined, "w", encoding="utf-8") as file:
            file.write(report.lines(with_equal=True) + "\n")
    lines = report.lines(with_equal=combined == "-")
    output.show(report.to_dict(), "\n".join(filter(None, [lines, report.summary()])), lines)


@click.command("diff")
@click.argument("first", metavar="URI")
@click.argument("second", metavar="URI")
@click.option("--full", "in_full", is_flag=True, help="Read every tensor of both, and compare the bytes.")
@keyed
@storage_options("storage", "the first URI")
@storage_options("to", "the second URI")
@answers
def diff_checkpoints(first: str, second: str, *, in_full: bool, output: Output, **asked: Any) -> int:
    """Compare the tensors of two checkpoints.

    Their formats and their division into shards may differ. Names, shapes and dtypes are compared; the bytes only with
    --full. Without it, the digests of manifests are compared if both have one. Exit codes: 0 no difference was found, 1
    there is one, others as for pull.

    Example: python -m streamer diff s3://bucket/run/1 s3://bucket/run/2 --full
    """
    from streamer._commands.differences import diff  # noqa: PLC0415 (as needed)

    with _hints_about_keys(asked["key_file"]):
        requests = _request(first, "storage_options", asked), _request(second, "to_options", asked)
        report = diff(*requests, in_full=in_full, progress=output.progress())
    output.show(report.to_dict(), lambda: str(report), printable_lines(report.differing))
    return DIFFERENT if report.is_different else 0


@click.command("manifest")
@click.argument("uri")
@click.option("--digest", default="crc32c", type=click.Choice(["crc32c", "sha256"]), help="sha256 finds liars, too.")
@storage_options()
@answers
def write_manifest(
    uri: str, *, digest: Literal["crc32c", "sha256"], storage_options: dict[str, Any] | None, output: Output
) -> None:
    """Write the digests of a checkpoint's tensors beside it.

    All tensors are read once. Loads with verify="manifest" compare their bytes with these digests. An existing manifest
    is replaced. Exit codes: as for pull.

    Example: python -m streamer manifest s3://bucket/model
    """
    from streamer import _manifest  # noqa: PLC0415 (as needed)

    progress = output.progress()
    report = _manifest.write_manifest(uri, storage_options=storage_options, progress=progress, digest=digest)
    size = size_text(report.bytes)
    text = f"{printable(report.uri)}: {counted(report.tensors, 'tensor')}, {size} in {report.seconds:.2f} s"
    output.show(report.to_dict(), text, printable(report.uri))


@click.command("versions")
@click.argument("uri")
@storage_options()
@answers
def list_versions(uri: str, *, storage_options: dict[str, Any] | None, output: Output) -> None:
    """List the published versions below a URI, the latest last.

    Example: python -m streamer versions s3://bucket/run
    """
    from streamer._versions import published  # noqa: PLC0415 (as needed)

    names = published(uri, storage_options)
    output.show(names, "\n".join(names), "\n".join(names))


def _request(uri: str, options: str, asked: dict[str, Any]) -> Request:
    from streamer.core.request.request import Request  # noqa: PLC0415 (as needed)

    key, context = _key(asked["key_file"]), asked["key_context"]
    return Request(uri=uri, storage_options=asked[options], key=key, context=context)


def _key(key_file: str | None) -> str | None:
    return f"env:{KEY_VARIABLE}" if key_file is None and os.environ.get(KEY_VARIABLE) else key_file


@contextmanager
def _hints_about_keys(key_file: str | None) -> Iterator[None]:
    """Say in errors about keys what a user of a command does about them."""
    try:
        yield
    except StreamerError as error:
        from streamer.core.encryption.keys import LEAVE_OUT  # noqa: PLC0415 (as needed)

        if error.hint == LEAVE_OUT:  # without a refusal, a file that replaces an encrypted one would pass
            leave_out = "Leave --key-file out" if key_file else f"The key is that of {KEY_VARIABLE}: unset it"
            error.hint = f"{leave_out} if this checkpoint should not be encrypted"
        elif isinstance(error, EncryptionKeyError) and _key(key_file) is None:
            error.hint = f"Pass --key-file with the path of a file or env:NAME, or set {KEY_VARIABLE}"
        raise
