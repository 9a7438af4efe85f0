"""The command line tells what is installed, for people and for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from safetensors.torch import save_file

from streamer import plugins
from streamer._cli import main
from streamer.plugins import Backend, Examined, ExaminedFormat

WORKS = Examined(Backend("acme", "acme-store", "1.5", builtin=False), "native", is_used=True, error=None)
BROKEN = Examined(Backend("emca", "emca-store", "0.1", builtin=False), None, is_used=True, error="it is broken. Fix it")
STRANGER = Examined(Backend("s3", "acme-store", "1.5", builtin=False), "native", is_used=False, error=None)
UNUSED = Examined(Backend("s3", "streamer", "0.1.0", builtin=True), "native", is_used=False, error=None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


FORMAT = ExaminedFormat("Acme", (".ac", ".me"), "acme-format", "2.0", builtin=False, error=None)
NO_FORMAT = ExaminedFormat("emca", (), "emca-format", "2.1", builtin=False, error="it is broken. Fix it")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "examine", lambda: [WORKS, BROKEN, UNUSED, STRANGER])
    monkeypatch.setattr(plugins, "examine_formats", lambda: [FORMAT, NO_FORMAT])


@pytest.mark.usefixtures("found")
def test_the_table_has_a_line_for_each_backend() -> None:
    lines = [line.split() for line in run("plugins").splitlines()]
    assert lines[0] == ["SCHEME", "DISTRIBUTION", "VERSION", "READS", "STATUS"]
    assert lines[1] == ["acme://", "acme-store", "1.5", "native", "ok"]
    assert lines[2] == ["emca://", "emca-store", "0.1", "-", "it", "is", "broken.", "Fix", "it"]
    assert lines[3][:6] == ["s3://", "streamer", "0.1.0", "native", "not", "used:"]
    assert "not used: STREAMER_PLUGINS=acme-store" in run("plugins")


@pytest.mark.usefixtures("found")
def test_formats_have_a_table_of_their_own() -> None:
    lines = [line.split() for line in run("plugins").splitlines()]
    assert lines[5:] == [
        [],
        ["FORMAT", "DISTRIBUTION", "VERSION", "FILES", "STATUS"],
        ["Acme", "acme-format", "2.0", "*.ac", "*.me", "ok"],
        ["emca", "emca-format", "2.1", "-", "it", "is", "broken.", "Fix", "it"],
    ]


@pytest.mark.usefixtures("found")
def test_json_has_the_same_facts() -> None:
    reported = json.loads(run("plugins", "--json"))
    assert reported[0] == {
        "scheme": "acme",
        "distribution": "acme-store",
        "version": "1.5",
        "builtin": False,
        "reads": "native",
        "is_used": True,
        "error": None,
    }
    assert reported[1]["error"] == "it is broken. Fix it"
    assert reported[4] == {
        "format": "Acme",
        "suffixes": [".ac", ".me"],
        "distribution": "acme-format",
        "version": "2.0",
        "builtin": False,
        "error": None,
    }
    assert reported[5]["error"] == "it is broken. Fix it"


def test_the_module_runs_and_every_backend_of_ours_works() -> None:
    command = [sys.executable, "-m", "streamer", "plugins", "--json"]
    # google.api_core would have Python 3.10 be replaced.
    environment = os.environ | {"PYTHONWARNINGS": "ignore:You are using a non-supported Python:FutureWarning"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    listed = [each for each in json.loads(done.stdout) if each["builtin"]]
    ours = {each["scheme"]: each for each in listed if "scheme" in each}
    assert set(ours) == {"abfs", "abfss", "az", "file", "gcs", "gs", "hf", "http", "https", "nfs", "s3", "s3a"}
    assert [each for each in ours.values() if each["error"] or each["reads"] != "native"] == []
    formats = {each["format"]: each["error"] for each in listed if "format" in each}
    assert formats == dict.fromkeys(("DCP", "GGUF", "NumPy", "PyTorch", "Tensorizer"))
    assert done.stderr == ""


def test_the_version_is_the_packages() -> None:
    import streamer

    assert run("--version") == f"streamer, version {streamer.__version__}\n"


def test_a_manifest_is_written_and_reported(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1000)}, tmp_path / "a.safetensors")
    reported = run("manifest", str(tmp_path))
    assert reported.startswith(f"{tmp_path}/a.safetensors.manifest.json: 1 tensor, 4.00 kB in ")
    assert (tmp_path / "a.safetensors.manifest.json").exists()


def test_written_files_are_reported_to_programs(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1000)}, tmp_path / "a.safetensors")
    reported = json.loads(run("manifest", str(tmp_path / "a.safetensors"), "--json"))
    assert reported.pop("seconds") > 0
    assert reported == {"uri": f"{tmp_path}/a.safetensors.manifest.json", "shards": 1, "tensors": 1, "bytes": 4000}


def test_an_error_is_a_line_and_a_status(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["manifest", str(tmp_path / "none.safetensors")])
    assert result.exit_code == 66
    hint = "Check the path, and that its disk is mounted"
    assert result.output == f"Error: {tmp_path}/none.safetensors: No such file or folder (ENOENT). {hint}\n"


def test_an_error_is_reported_to_programs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["manifest", str(tmp_path / "none.safetensors"), "--json"])
    reported = json.loads(result.stdout)
    assert (result.exit_code, reported["exit_code"], reported["error"]) == (66, 66, "ObjectNotFoundError")
    assert "No such file or folder" in reported["message"]


@each_row(
    ("arguments", "reported"),
    [
        (["pull"], "Missing argument 'URI'"),
        (["pull", "a", "b", "--jsn"], "No such option '--jsn'"),
        (["pul"], "No such command 'pul'"),
        (["plugins", "extra"], "Got unexpected extra argument"),
        (["manifest", "s3://b/m", "--storage-options", "{"], "it is no JSON object"),
        (["manifest", "a", "http://user:CANARY@host/x"], "Got unexpected extra argument"),
    ],
)
def test_a_usage_error_is_reported_to_programs_regression(arguments: list[str], reported: str) -> None:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["exit_code"], answer["error"]) == (2, 2, "UsageError")
    assert reported in answer["message"]
    assert reported in result.stderr
    assert "CANARY" not in result.output


def test_a_script_s_own_json_option_is_not_ours() -> None:
    result = CliRunner().invoke(main, ["run", "absent.py", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("module", ["absent_module", "absent_package.part", "json.absent", "json.absent.part"])
def test_an_absent_module_is_reported_in_one_line(module: str) -> None:
    result = CliRunner().invoke(main, ["run", "-m", module])
    assert result.exit_code == 2
    assert f"there is no module '{module}'" in result.output


def test_what_a_module_fails_to_import_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy").mkdir()
    (tmp_path / "needy/__init__.py").write_text("import absent_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(main, ["run", "-m", "needy.part"])
    assert isinstance(result.exception, ModuleNotFoundError)
    assert result.exception.name == "absent_dependency"


def test_an_absent_script_is_reported_in_one_line() -> None:
    result = CliRunner().invoke(main, ["run", "absent.py"])
    assert result.exit_code == 2
    assert "there is no file 'absent.py'" in result.output


@pytest.mark.parametrize("options", ["{", "[]", "7"])
def test_storage_options_are_a_json_object(options: str) -> None:
    result = CliRunner().invoke(main, ["manifest", "s3://bucket/model", "--storage-options", options])
    assert result.exit_code == 2
    assert "it is no JSON object" in result.output


def test_a_usage_error_repeats_no_secret_of_a_url_regression():
    url = "http://user:CANARY-CANARY@host/x?sig=CANARY-CANARY"
    for arguments in (["manifest", "a", url], [url]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 2
        assert "http://host/x" in done.output
        assert "CANARY" not in done.output


@pytest.mark.parametrize("command", [["plugins"], ["plugins", "--json"], ["pull", "nowhere", "folder", "--json"]])
def test_output_that_cannot_be_written_is_reported_in_one_line(command: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        reported = [sys.executable, "-W", "ignore", "-m", "streamer", *command]  # libraries warn of old Pythons
        done = subprocess.run(reported, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 73
    assert done.stderr == "Error: standard output: No space left on device\n"


def test_a_reader_of_the_output_that_leaves_ends_a_command_without_a_word() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-W", "ignore", "-m", "streamer", "plugins"]
    with os.fdopen(writes) as left:
        done = subprocess.run(command, stdout=left, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_written_in_part_is_no_success_regression(unbuffered: str, tmp_path: Path) -> None:
    """Without a buffer, Python forgets what the system did not take of a write."""
    save_file({f"a.long.name.of.tensor.{number}": torch.zeros(1) for number in range(4000)}, tmp_path / "m.safetensors")
    command = [sys.executable, "-W", "ignore", "-m", "streamer", "inspect", str(tmp_path / "m.safetensors")]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()  # a pipe holds 64 KiB, and there are more
        assert (process.wait(), process.stderr.read()) == (1, b"")


def test_progress_needs_no_standard_error(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    command = f"exec {sys.executable} -m streamer pull {tmp_path} {tmp_path}-copy 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "all there" in done.stdout) == (0, True)


def test_an_error_that_cannot_be_printed_still_has_its_exit_code(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "streamer", "pull", str(tmp_path / "missing"), str(tmp_path / "copy")]
        assert subprocess.run(command, stderr=full, check=False).returncode == 66


def test_a_folder_without_a_name_is_not_the_working_directory() -> None:
    result = CliRunner().invoke(main, ["pull", "s3://bucket/model", ""])
    assert result.exit_code == 2
    assert "Invalid value for DIR: the name is empty" in result.output


@pytest.mark.parametrize(
    ("line", "reported", "code"),
    [
        ("raise BrokenPipeError(32, 'my own pipe')", "my own pipe", 1),
        ("input()", "EOFError", 1),
        ("import click; raise click.UsageError('mine')", "UsageError: mine", 1),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", -signal.SIGINT),
        ("import sys; sys.exit(7)", "", 7),
    ],
)
def test_the_errors_of_a_script_are_its_own(tmp_path: Path, line: str, reported: str, code: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(line)
    command = [sys.executable, "-m", "streamer", "run", str(script)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert reported in done.stderr
