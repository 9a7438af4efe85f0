"""The command line. Data goes to standard output, everything else to standard error; ``--json`` is for programs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

import click

import streamer
from streamer import plugins
from streamer._cache_cli.command import cache
from streamer._check import check
from streamer._command_line.exit_codes import exit_code_of
from streamer._command_line.options import copy_options, parsed_options
from streamer._command_line.output import print_line, print_table
from streamer._pull.command import INTERRUPTED, report_failure, run_pull
from streamer._pull.pull import Wanted
from streamer._push.commands import copy_files, push_folder
from streamer.core.encryption.keys import LEAVE_OUT
from streamer.core.quoting import counted, printable, size_text
from streamer.core.secrets.redact import redact

__all__ = ["main"]

KEY_VARIABLE = "STREAMER_KEY"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s')]*")


def _fail(error: click.ClickException, words: Sequence[str] = ()) -> NoReturn:
    """End the program with a usage error, without the secrets of URLs; with ``--json`` it is also one JSON object."""
    vars(error)["message"] = _URL.sub(lambda url: redact(url[0]), error.message)
    if isinstance(error, click.UsageError) and "--json" in words and words[:1] != ["run"]:
        failure = {"error": "UsageError", "message": printable(error.format_message()), "exit_code": error.exit_code}
        with suppress(click.ClickException, OSError):  # the exit code reports the failure, too
            print_line(json.dumps(failure))
    error.show()
    sys.exit(error.exit_code)


class _Commands(click.Group):
    """Commands whose usage errors show no secrets: an argument in the wrong place may be a URL with a secret."""

    def main(self, *args: Any, **named: Any) -> Any:
        """Run a command, as the base class does."""
        is_program = named.pop("standalone_mode", True)
        run: Any = self._with_safe_errors if is_program else super().main
        status = run(*args, **named, standalone_mode=False)
        if callable(status):  # a user's script: its errors are not handled here
            status = status()
        if is_program:
            sys.exit(status if isinstance(status, int) else 0)
        return status

    def _with_safe_errors(self, *args: Any, **named: Any) -> Any:
        try:
            return super().main(*args, **named)
        except click.ClickException as error:
            _fail(error, list(named.get("args") or (args[0] if args else None) or sys.argv[1:]))
        except click.Abort:
            words = list(named.get("args") or sys.argv[1:])
            is_json = "--json" in words and words[:1] != ["run"]
            sys.exit(report_failure("interrupted", INTERRUPTED, None, as_json=is_json))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(streamer.__version__, prog_name="streamer")
def main() -> None:
    """Model weights from any storage into CPU or GPU memory."""


main.add_command(cache)


@main.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def list_plugins(as_json: bool) -> None:
    """List the installed storages and formats: name, distribution, version, how they read, and why one does not work.

    Every other URL that fsspec supports is read too, through Python. Safetensors is always read, and not listed.
    STREAMER_DISABLED_PLUGINS leaves distributions out; one that claims a scheme of ours serves it where
    STREAMER_PLUGINS names it.

    Example: python -m streamer plugins --json
    """
    examined = plugins.examine()
    formats = plugins.examine_formats()
    if as_json:
        entries = [*(_as_dict(each) for each in examined), *(asdict(each) for each in formats)]
        print_line(json.dumps(entries, indent=2))
        return
    rows = [("SCHEME", "DISTRIBUTION", "VERSION", "READS", "STATUS")]
    for each in examined:
        backend = each.backend
        rows.append((f"{backend.scheme}://", backend.distribution, backend.version, each.reads or "-", _status(each)))
    print_table(rows)
    print_line("")
    rows = [("FORMAT", "DISTRIBUTION", "VERSION", "FILES", "STATUS")]
    for found in formats:
        files = " ".join(f"*{suffix}" for suffix in found.suffixes) or "-"
        rows.append((found.format, found.distribution, found.version, files, found.error or "ok"))
    print_table(rows)


@main.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="TARGET is the name of a module, as for python -m.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_script(target: str, arguments: tuple[str, ...], *, is_module: bool) -> Callable[[], None]:
    """Run the script or module TARGET with ARGUMENTS; libraries that use safetensors then read with streamer.

    STREAMER_DISABLE_PATCHES=1 runs it without these patches.

    Example: python -m streamer run train.py --model s3://bucket/model
    """
    if not is_module and not os.path.exists(target):
        raise click.BadParameter(f"there is no file {target!r}", param_hint="TARGET")
    sys.argv = [target, *arguments]
    return partial(_run, target, is_module=is_module)


@main.command("manifest")
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
    try:
        report = streamer.write_manifest(uri, storage_options=parsed_options(storage_options))
    except streamer.StreamerError as error:
        context.exit(report_failure(str(error), exit_code_of(error), type(error).__name__, as_json=as_json))
    if as_json:
        print_line(json.dumps(report.to_dict()))
    else:
        size = size_text(report.bytes)
        print_line(f"{printable(report.uri)}: {counted(report.tensors, 'tensor')}, {size} in {report.seconds:.2f} s")


@main.command("check")
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
    key = key_file or (f"env:{KEY_VARIABLE}" if os.environ.get(KEY_VARIABLE) else None)
    try:
        options = parsed_options(storage_options)
        report = check(uri, storage_options=options, key=key, context=key_context, in_full=in_full)
    except streamer.StreamerError as error:
        if error.hint == LEAVE_OUT:  # without a refusal, a file that replaces an encrypted one would pass
            leave_out = "Leave --key-file out" if key_file else f"The key is that of {KEY_VARIABLE}: unset it"
            error.hint = f"{leave_out} if this checkpoint should not be encrypted"
        elif isinstance(error, streamer.EncryptionKeyError) and key is None:
            error.hint = f"Pass --key-file with the path of a file or env:NAME, or set {KEY_VARIABLE}"
        context.exit(report_failure(str(error), exit_code_of(error), type(error).__name__, as_json=as_json))
    print_line(json.dumps(report.to_dict()) if as_json else printable(str(report)))


@main.command("pull")
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

    They appear there when all of them are whole. Run again, it goes on where it stopped, and reads nothing where
    everything is there. A pattern is of the name relative to URI; its * matches slashes, too. Encrypted files are
    copied as they are. With their key, every byte of them is authenticated before they appear, and a file that may hold
    tensors and is not encrypted is refused: leave it out with --exclude.

    Exit codes: 0 all there, 2 usage, 65 wrong data, 66 not found, 69 storage unavailable, 73 disk full or not
    writable, 75 changed meanwhile (try again), 76 TLS or protocol, 77 access denied, 130 and 143 interrupted.

    Example: python -m streamer pull s3://bucket/model /mnt/models --include '*.safetensors' --include '*.json'
    """
    if not folder:
        raise click.BadParameter("the name is empty; write . for the working directory", param_hint="DIR")
    chosen = Wanted(
        include=wanted["include"],
        exclude=wanted["exclude"],
        is_verified=not wanted["no_verify"],
        is_checked=wanted["check"],
        replaces=wanted["replace"],
        key=wanted["key_file"],
        context=wanted["key_context"],
        storage_options=parsed_options(storage_options),
    )
    context.exit(run_pull(uri, folder, chosen, as_json=as_json, is_quiet=quiet))


main.add_command(push_folder)
main.add_command(copy_files)


def _run(target: str, *, is_module: bool) -> None:
    with streamer.patched():
        if is_module:
            sys.path.insert(0, os.getcwd())
            if _is_missing(target):  # imports parent packages, so the patches come first
                _fail(click.BadParameter(f"there is no module {target!r}", param_hint="TARGET"))
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
            runpy.run_path(target, run_name="__main__")


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError as error:  # a parent package is missing, or a module that it imports
        parents = [module.rsplit(".", count)[0] for count in range(1, module.count(".") + 1)]
        if error.name in parents:
            return True
        raise


def _as_dict(examined: plugins.Examined) -> dict[str, Any]:
    rest = asdict(examined)
    return {**rest.pop("backend"), **rest}


def _status(examined: plugins.Examined) -> str:
    if examined.error is not None:
        return examined.error
    if examined.is_used:
        return "ok"
    if examined.backend.builtin:
        return "not used: another distribution serves this scheme"
    return f"not used: STREAMER_PLUGINS={examined.backend.distribution} would let it serve this scheme"
