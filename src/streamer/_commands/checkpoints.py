"""The commands ``manifest``, ``check``, ``publish`` and ``versions``."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from streamer._commands.output import end_with, parsed_options, print_line
from streamer.core.errors import EncryptionKeyError, StreamerError
from streamer.core.quoting import counted, printable, size_text

KEY_VARIABLE = "STREAMER_KEY"


@click.command("manifest")
@click.argument("uri")
@click.option(
    "--storage-options",
    "storage_options",
    metavar="JSON",
    help="As storage_options of streamer.load. Set keys and passwords in the environment, where no other user sees"
    " them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a line, also of an error.")
@click.pass_context
def write_manifest(context: click.Context, /, uri: str, *, storage_options: str | None, as_json: bool) -> None:
    """Read the checkpoint at URI and write the digests of its tensors beside it.

    Loads with verify="manifest" compare their bytes with these digests. An existing manifest is replaced. Exit codes:
    as for pull.

    Example: python -m streamer manifest s3://bucket/model
    """
    from streamer import _manifest  # noqa: PLC0415 (as needed)

    try:
        report = _manifest.write_manifest(uri, storage_options=parsed_options(storage_options))
    except StreamerError as error:
        end_with(error, context, as_json=as_json)
    if as_json:
        print_line(json.dumps(report.to_dict()))
    else:
        size = size_text(report.bytes)
        print_line(f"{printable(report.uri)}: {counted(report.tensors, 'tensor')}, {size} in {report.seconds:.2f} s")


@click.command("check")
@click.argument("uri")
@click.option("--storage-options", "storage_options", metavar="JSON", help="As of the command manifest.")
@click.option(
    "--key-file",
    help="The key of an encrypted checkpoint: a file with 32 bytes, hexadecimal digits or base64, or env:NAME. Without"
    " it, STREAMER_KEY if it is set. With a key, a checkpoint that is not encrypted is refused.",
)
@click.option("--key-context", help="The context to which the encrypted checkpoint was bound when it was saved.")
@click.option("--full", "in_full", is_flag=True, help="Read every tensor, too.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a line, also of an error.")
@click.pass_context
def check_checkpoint(
    context: click.Context,
    /,
    uri: str,
    *,
    storage_options: str | None,
    key_file: str | None,
    key_context: str | None,
    in_full: bool,
    as_json: bool,
) -> None:
    """Check the checkpoint at URI: headers, index against shards, and the manifest.

    Ends as a load would, before a server starts. It reads no weights, unless --full is given. With a key, the headers
    must be as they were saved, and with --full every byte of the tensors, too. Without one, --full compares them with
    the manifest, or with the digests that the storage keeps. Exit codes as of pull.

    Example: python -m streamer check s3://bucket/model --full --key-file weights.key
    """
    from streamer._check import check  # noqa: PLC0415 (as needed)

    key = f"env:{KEY_VARIABLE}" if key_file is None and os.environ.get(KEY_VARIABLE) else key_file
    try:
        options = parsed_options(storage_options)
        report = check(uri, storage_options=options, key=key, context=key_context, in_full=in_full)
    except StreamerError as error:
        from streamer.core.encryption.keys import LEAVE_OUT  # noqa: PLC0415 (as needed)

        if error.hint == LEAVE_OUT:  # without a refusal, a file that replaces an encrypted one would pass
            leave_out = "Leave --key-file out" if key_file else f"The key is that of {KEY_VARIABLE}: unset it"
            error.hint = f"{leave_out} if this checkpoint should not be encrypted"
        elif isinstance(error, EncryptionKeyError) and key is None:
            error.hint = f"Pass --key-file with the path of a file or env:NAME, or set {KEY_VARIABLE}"
        end_with(error, context, as_json=as_json)
    print_line(json.dumps(report.to_dict()) if as_json else printable(str(report)))


@click.command("publish")
@click.argument("source")
@click.argument("uri")
@click.option("--keep", type=click.IntRange(min=1), help="Remove all but the last so many versions.")
@click.option("--grace", "grace_s", default=3600.0, show_default=True, help="Seconds that a replaced version stays.")
@click.option("--storage-options", "storage_options", metavar="JSON", help="As of the command manifest, for URI.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a line, also of an error.")
@click.pass_context
def publish_folder(context: click.Context, /, source: str, uri: str, *, as_json: bool, **how: Any) -> None:
    """Copy the folder SOURCE to a new version below URI, and then let URI@latest name it. Exit codes: as for pull.

    Example: python -m streamer publish /mnt/trained s3://bucket/run --keep 3
    """
    from streamer._push.publish import publish  # noqa: PLC0415 (as needed)

    try:
        how["storage_options"] = parsed_options(how["storage_options"])
        report = publish(source, uri, progress=False if as_json else None, **how)
    except StreamerError as error:
        end_with(error, context, as_json=as_json)
    removed = f"; removed {', '.join(report.removed)}" if report.removed else ""
    print_line(json.dumps(report.to_dict()) if as_json else printable(f"published {report.uri}{removed}"))


@click.command("versions")
@click.argument("uri")
@click.option("--storage-options", "storage_options", metavar="JSON", help="As of the command manifest.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of lines; of an error, an object.")
@click.pass_context
def list_versions(context: click.Context, /, uri: str, *, storage_options: str | None, as_json: bool) -> None:
    """List the versions below URI in the order in which they were published, the latest last.

    Example: python -m streamer versions s3://bucket/run
    """
    from streamer._versions import published  # noqa: PLC0415 (as needed)

    try:
        names = published(uri, parsed_options(storage_options))
    except StreamerError as error:
        end_with(error, context, as_json=as_json)
    print_line(json.dumps(names) if as_json else "\n".join(names))
