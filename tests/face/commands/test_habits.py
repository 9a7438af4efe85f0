"""What all commands have in common: help, forms of output, options, dry runs, completion."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer
from uploads import uploaded

import streamer
from streamer._cli import main
from streamer._commands import output


def run(*words: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def commands() -> dict[str, click.Command]:
    found = {}
    for name, command in main.commands.items():
        inner = command.commands if isinstance(command, click.Group) else {}
        found |= {name: command, **{f"{name} {each}": of_group for each, of_group in inner.items()}}
    return found


def test_the_first_line_of_help_of_each_command_fits_its_column() -> None:
    for group in ([], ["cache"]):
        listed = run(*group, "--help").stdout.partition("Commands:\n")[2].splitlines()
        assert len(listed) == len(main.commands if not group else main.commands["cache"].commands)  # type: ignore[attr-defined]
        assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_each_command_has_an_example_and_its_forms() -> None:
    without = [name for name, each in commands().items() if "Example" not in (each.help or "")]
    assert without == ["cache"]  # a group: each of its commands has one
    forms = [name for name, each in commands().items() if {"as_json", "form", "quiet"} <= {p.name for p in each.params}]
    assert {*commands()} - {*forms} == {"cache", "completion", "run"}


def test_cp_is_copy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert run("cp", tmp_path / "a.txt", f"{tmp_path}/to/").exit_code == 0
    assert (tmp_path / "to/a.txt").read_text() == "a"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_is_a_script_that_names_the_command(shell: str) -> None:
    assert "streamer" in run("completion", shell).stdout


def test_words_are_completed() -> None:
    code = "from streamer._cli import main; main(prog_name='streamer')"
    variables = {"_STREAMER_COMPLETE": "zsh_complete", "COMP_WORDS": "streamer ins", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[1] == "inspect", done


@each_row(
    ("words", "options"),
    [
        (["--storage-option", "anon=true"], {"anon": True}),
        (["--storage-option", "key=plain", "--storage-option", "timeout=30"], {"key": "plain", "timeout": 30}),
        (["--storage-option", 'key="30"'], {"key": "30"}),
        (["--storage-options", '{"a": 1}', "--storage-option", "b=x=y"], {"a": 1, "b": "x=y"}),
        (["--storage-option", 'client_kwargs={"region_name": "x"}'], {"client_kwargs": {"region_name": "x"}}),
    ],
)
def test_one_storage_option_is_a_name_and_a_value(
    monkeypatch: pytest.MonkeyPatch, words: list[str], options: dict[str, Any]
) -> None:
    given = []
    monkeypatch.setattr("streamer._versions.published", lambda _uri, options: given.append(options) or [])
    assert run("versions", "s3://bucket/run", *words).exit_code == 0
    assert given == [options]


def test_a_storage_option_without_a_name_is_refused_without_its_text() -> None:
    result = run("versions", "s3://bucket/run", "--storage-option", "CANARY-CANARY")
    assert (result.exit_code, "NAME=VALUE" in result.output, "CANARY" in result.output) == (2, True, False)


def test_format_json_is_json_also_for_a_wrong_command_line(tmp_path: Path) -> None:
    for words in (["--format", "json"], ["--format=json"], ["--json"]):
        assert json.loads(run("ls", tmp_path / "absent", *words).stdout)["exit_code"] == 66
        assert json.loads(run("ls", *words).stdout)["error"] == "UsageError"


def test_long_commands_print_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "JSON_EVERY_S", 0.0)
    save_file({"a": torch.ones(1000)}, tmp_path / "model.safetensors")
    result = run("copy", tmp_path / "model.safetensors", f"{tmp_path}/to/", "--json")
    assert json.loads(result.stdout)["files"] == 1
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    size = (tmp_path / "model.safetensors").stat().st_size
    assert lines[-1] == {"done_bytes": size, "total_bytes": size}


def folder(path: Path) -> Path:
    path.mkdir()
    save_file({"a": torch.ones(1000)}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    return path


def everything_below(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("command", ["pull", "push", "copy"])
def test_a_dry_run_says_what_a_run_does_and_writes_nothing(command: str, tmp_path: Path) -> None:
    source, target = folder(tmp_path / "source"), tmp_path / "target"
    sizes = {each.name: each.stat().st_size for each in source.iterdir()}
    before = everything_below(tmp_path)
    plan = json.loads(run(command, source, target, "--dry-run", "--json").stdout)
    assert (plan["copied"], plan["kept_files"], plan["dry_run"]) == (sizes, 0, True)
    assert (everything_below(tmp_path), target.exists()) == (before, False)
    assert run(command, source, target).exit_code == 0
    (source / "config.json").unlink()
    (source / "more.json").write_text("[1]")
    before = everything_below(tmp_path)
    plan = json.loads(run(command, source, target, "--dry-run", "--json").stdout)
    assert (plan["copied"], plan["kept_files"]) == ({"more.json": 3}, 1)
    assert plan["removed"] == (["config.json"] if command == "pull" else [])
    assert everything_below(tmp_path) == before


def test_a_dry_run_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "source"), tmp_path / "target"
    streamer.save({"a": torch.ones(99), "b": torch.ones(99)}, target, max_shard_bytes="400", progress=False)
    older = sorted(each.name for each in target.iterdir())
    for command in ("pull", "push", "copy"):
        assert {run(command, source, target, *more).exit_code for more in ([], ["--dry-run"])} == {2}
        plan = json.loads(run(command, source, target, "--dry-run", "--replace", "--json").stdout)
        assert sorted(name.rpartition("/")[2] for name in plan["removed"]) == older, plan
    assert sorted(each.name for each in target.iterdir() if not each.name.startswith(".")) == older


@pytest.mark.parametrize("command", ["pull", "push", "copy"])
def test_a_limited_rate_is_kept(command: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 20))
    began = time.monotonic()
    assert run(command, tmp_path / "weights.bin", f"{tmp_path}/to/", "--limit-rate", "2MB").exit_code == 0
    assert time.monotonic() - began > 0.2  # a minimum, which no busy machine can shorten
    assert run(command, tmp_path / "weights.bin", f"{tmp_path}/to/", "--limit-rate", "fast").exit_code == 2


def test_a_dry_run_from_a_storage_reads_no_bytes_of_files(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    uri, _ = uploaded(request, "memory", folder(tmp_path / "source"))
    plan = run("pull", uri, tmp_path / "target", "--dry-run")
    assert "2 files" in plan.stdout
    assert "nothing was written" in plan.stdout
    with ScriptedServer(b"x" * 4096) as server:
        server.answers_head = True
        assert run("pull", f"{server.url}", tmp_path / "target", "--dry-run").exit_code == 0
        assert all(each.end - each.begin <= 1 for each in server.requests if "range" in each.headers)
