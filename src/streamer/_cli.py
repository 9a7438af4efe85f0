"""The command line. Data goes to standard output, everything else to standard error; ``--json`` is for programs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

import streamer
from streamer._commands.cache import cache
from streamer._commands.checkpoints import (
    check_checkpoint,
    diff_checkpoints,
    inspect_checkpoint,
    list_objects,
    list_versions,
    write_manifest,
)
from streamer._commands.copies import copy_files, publish_folder, pull_folder, push_folder
from streamer._commands.doctor import examine_machine, list_processes, show_trace
from streamer._commands.output import INTERRUPTED, Output, answers, print_line, report_failure, table
from streamer.core.quoting import printable
from streamer.core.secrets.redact import redact

if TYPE_CHECKING:
    from streamer import plugins

_ALIASES = {"cp": "copy"}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s')]*")


def _fail(error: click.ClickException, words: Sequence[str] = ()) -> NoReturn:
    """End the program with a usage error, without the secrets of URLs; with ``--json`` it is also one JSON object."""
    vars(error)["message"] = _URL.sub(lambda url: redact(url[0]), error.message)
    if isinstance(error, click.UsageError) and _wants_json(words):
        failure = {"error": "UsageError", "message": printable(error.format_message()), "exit_code": error.exit_code}
        with suppress(click.ClickException, OSError):  # the exit code reports the failure, too
            print_line(json.dumps(failure))
    error.show()
    sys.exit(error.exit_code)


def _wants_json(words: Sequence[str]) -> bool:
    is_named = {"--json", "--format=json"} & {*words} or ("--format", "json") in itertools.pairwise(words)
    return bool(is_named) and words[:1] != ["run"]


class _Commands(click.Group):
    """Commands whose usage errors show no secrets: an argument in the wrong place may be a URL with a secret."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command, also by its short name."""
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

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
            sys.exit(report_failure("interrupted", INTERRUPTED, None, as_json=_wants_json(words)))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(streamer.__version__, prog_name="streamer")
def main() -> None:
    """Model weights from any storage into CPU or GPU memory."""


for _command in (
    *(cache, check_checkpoint, copy_files, diff_checkpoints, inspect_checkpoint, list_objects, list_versions),
    *(publish_folder, pull_folder, push_folder, write_manifest, examine_machine, list_processes, show_trace),
):
    main.add_command(_command)


@main.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def print_completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes the words behind the command "streamer", which pip installs.

    Example: python -m streamer completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 (as needed)

    kind = get_completion_class(shell)
    assert kind is not None
    print_line(kind(main, {}, "streamer", "_STREAMER_COMPLETE").source())


@main.command("plugins")
@answers
def list_plugins(output: Output) -> None:
    """List the storages and formats that are installed.

    For each: name, distribution, version, how it reads, and why one does not work. Every other URL that fsspec supports
    is read too, through Python. Safetensors is always read, and not listed. STREAMER_DISABLED_PLUGINS leaves
    distributions out; one that claims a scheme of ours serves it where STREAMER_PLUGINS names it.

    Example: python -m streamer plugins --json
    """
    from streamer import plugins  # noqa: PLC0415 (as needed)

    examined = plugins.examine()
    formats = plugins.examine_formats()
    rows = [("SCHEME", "DISTRIBUTION", "VERSION", "READS", "STATUS")]
    for each in examined:
        backend = each.backend
        rows.append((f"{backend.scheme}://", backend.distribution, backend.version, each.reads or "-", _status(each)))
    of_formats = [("FORMAT", "DISTRIBUTION", "VERSION", "FILES", "STATUS")]
    for found in formats:
        files = " ".join(f"*{suffix}" for suffix in found.suffixes) or "-"
        of_formats.append((found.format, found.distribution, found.version, files, found.error or "ok"))
    names = [each.backend.scheme for each in examined] + [each.format for each in formats]
    entries = [*(_as_dict(each) for each in examined), *(asdict(each) for each in formats)]
    output.show(entries, f"{table(rows)}\n\n{table(of_formats)}", "\n".join(names))


@main.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="TARGET is the name of a module, as for python -m.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_script(target: str, arguments: tuple[str, ...], *, is_module: bool) -> Callable[[], None]:
    """Run a script whose libraries then read with streamer.

    The script or module TARGET is run with ARGUMENTS. Libraries that use safetensors then read with streamer.
    STREAMER_DISABLE_PATCHES=1 runs it without these patches.

    Example: python -m streamer run train.py --model s3://bucket/model
    """
    if not is_module and not os.path.exists(target):
        raise click.BadParameter(f"there is no file {target!r}", param_hint="TARGET")
    sys.argv = [target, *arguments]
    return partial(_run, target, is_module=is_module)


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
