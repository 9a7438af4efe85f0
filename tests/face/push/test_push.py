"""``python -m streamer push`` and ``copy``: between real storages, whole or not there, resumed, nothing replaced."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uploads
from click.testing import CliRunner, Result
from each_row import each_row
from servers.forwarding import Fault, ForwardingProxy
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._cli import main
from streamer._pull.record import PullArguments
from streamer._push.push import Target, push
from streamer._push.report import PushReport

TARGETS = ("s3", "gs", "az", "memory", "file")


def checkpoint(folder: Path, value: float = 1.0, size: int = 5000) -> dict[str, np.ndarray[Any, Any]]:
    """Write three shards with what lies beside them."""
    tensors = {name: np.full(size, value + at, "f4") for at, name in enumerate("abc")}
    streamer.save(tensors, folder, max_shard_bytes=4 * size)
    (folder / "config.json").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub/vocab.txt").write_text("words")
    return tensors


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--quiet"])


def files(uri: str, options: dict[str, Any]) -> dict[str, bytes]:
    """Read what is there, through a pull of our own."""
    with tempfile.TemporaryDirectory() as folder:
        pulled = invoke("pull", uri, folder, "--storage-options", json.dumps(options))
        assert pulled.exit_code == 0, pulled.output
        found = content_of(Path(folder))
    return {name: content for name, content in found.items() if not name.startswith(".streamer-pull")}


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    name = f"push-{tmp_path.name}"
    if request.param == "s3":
        return Target(f"s3://private/{name}", request.getfixturevalue("s3_server").storage_options())
    if request.param == "gs":
        return Target(f"gs://private/{name}", request.getfixturevalue("gcs_server").storage_options())
    if request.param == "az":
        return Target(f"az://private/{name}", request.getfixturevalue("azure_server").storage_options())
    return Target(f"memory://{name}" if request.param == "memory" else str(tmp_path / name), {})


def pushed(source: Path | str, target: Target, **wanted: Any) -> PushReport:
    return push(str(source), target, PullArguments(**wanted), progress=False)


def test_a_folder_is_pushed_whole_and_the_second_time_nothing_is_sent(target: Target, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    report = pushed(tmp_path / "model", target)
    assert files(target.uri, dict(target.storage_options or {})) == content_of(tmp_path / "model")
    assert report.files == 7
    assert report.kept_files == 0
    again = pushed(tmp_path / "model", target)
    assert (again.kept_files, again.sent_bytes) == (7, 0)


def test_an_empty_file_is_one_there_too(target: Target, tmp_path: Path) -> None:
    if target.uri.startswith("gs:"):
        pytest.skip("the emulator breaks down")
    (tmp_path / "empty").touch()
    assert pushed(tmp_path / "empty", target).files == 1
    assert files(target.uri, dict(target.storage_options or {})) == {"empty": b""}
    assert pushed(tmp_path / "empty", target).kept_files == 1


def test_what_is_pushed_is_loaded(target: Target, tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path / "model")
    pushed(tmp_path / "model", target)
    loaded = streamer.load(target.uri, storage_options=target.storage_options, framework="np", verify="manifest")
    assert {name: array.tolist() for name, array in loaded.items()} == {n: a.tolist() for n, a in tensors.items()}


def test_a_file_of_other_content_is_never_replaced(target: Target, tmp_path: Path) -> None:
    checkpoint(tmp_path / "old", 1.0)
    checkpoint(tmp_path / "new", 2.0)
    pushed(tmp_path / "old", target)
    with pytest.raises(streamer.UsageError, match=r"another file is there: 'model-00001-of-00003\.safetensors'"):
        pushed(tmp_path / "new", target)
    assert files(target.uri, dict(target.storage_options or {})) == content_of(tmp_path / "old")


@pytest.mark.parametrize("storage", uploads.STORAGES)
def test_every_storage_is_copied_to_s3_without_a_disk(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path, s3_server: SeaweedServer
) -> None:
    checkpoint(tmp_path / "model")
    uri, options = uploads.uploaded(request, storage, tmp_path / "model")
    target = Target(f"s3://private/copied-{storage}-{tmp_path.name}", s3_server.storage_options())
    report = pushed(uri, target, storage_options=options)
    found = files(target.uri, s3_server.storage_options())
    expected = content_of(tmp_path / "model")
    assert found == {name: expected[name] for name in found}
    assert len(found) == (6 if storage == "hf" else 7)  # this server lists no sub-folder
    assert report.bytes == sum(map(len, found.values()))
    assert pushed(uri, target, storage_options=options).sent_bytes == 0


@pytest.mark.parametrize("name", ["model.safetensors", "renamed.safetensors"])
def test_a_url_with_the_files_suffix_is_the_files_name_regression(target: Target, tmp_path: Path, name: str) -> None:
    file = tmp_path / "model.safetensors"
    streamer.save({"a": np.ones(50, "f4")}, file, digests=False)
    there = Target(f"{target.uri}/{name}", target.storage_options)
    assert pushed(file, there).files == 1
    assert files(target.uri, dict(target.storage_options or {})) == {name: file.read_bytes()}
    assert pushed(file, there).kept_files == 1


def test_a_url_with_a_slash_or_another_suffix_is_a_folder(target: Target, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    for folder in ("one.json/", "v1.5"):
        pushed(tmp_path / "a.json", Target(f"{target.uri}/{folder}", target.storage_options))
    found = files(target.uri, dict(target.storage_options or {}))
    assert found == {"one.json/a.json": b"{}", "v1.5/a.json": b"{}"}


def test_a_folder_on_a_disk_with_the_files_suffix_stays_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "there.json").mkdir()
    pushed(tmp_path / "a.json", Target(str(tmp_path / "there.json")))
    assert (tmp_path / "there.json/a.json").read_text() == "{}"


@pytest.mark.parametrize("verb", ["pull", "push", "copy"])
def test_one_shard_that_is_named_is_copied_alone_regression(verb: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    shard = min((tmp_path / "model").rglob("*-of-*.safetensors"))
    done = invoke(verb, str(shard), f"{tmp_path}/copy/", "--quiet")
    assert (done.exit_code, done.output) == (0, "")
    copied = {name: content for name, content in content_of(tmp_path / "copy").items() if not name.startswith(".")}
    assert copied == {shard.name: shard.read_bytes()}


def test_an_index_is_copied_with_its_shards_regression(s3_server: SeaweedServer, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    target = Target(f"s3://private/of-index-{tmp_path.name}", s3_server.storage_options())
    pushed(tmp_path / "model/model.safetensors.index.json", target)
    found, expected = files(target.uri, s3_server.storage_options()), content_of(tmp_path / "model")
    assert found == {name: expected[name] for name in expected if "manifest" not in name and name.startswith("model")}


@pytest.mark.usefixtures("short_pauses")
def test_a_copy_that_failed_leaves_no_manifest_without_its_model_regression(
    s3_server: SeaweedServer, tmp_path: Path
) -> None:
    streamer.save({"a": np.ones(400_000, "f4")}, tmp_path / "model")
    uri, options = f"s3://private/alone-{tmp_path.name}", s3_server.storage_options()

    def refusing(method: str, path: str) -> Fault:
        return "refuse" if method in ("PUT", "POST") and path.partition("?")[0].endswith(".safetensors") else None

    with ForwardingProxy(s3_server.port, refusing) as proxy:
        through = {**options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(streamer.StorageError, match="not all files are there"):
            pushed(tmp_path / "model", Target(uri, through), options=streamer.Options(block_deadline_s=0.5))
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(uri, storage_options=options, framework="np", verify="manifest")
    names = [
        each["Key"]
        for each in s3_server.client().list_objects_v2(Bucket="private", Prefix=uri[13:]).get("Contents", [])
    ]
    assert names == []
    pushed(tmp_path / "model", Target(uri, options))
    assert files(uri, options) == content_of(tmp_path / "model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["push", "s3://a/b", "s3://c/d"], "python -m streamer copy"),
        (["pull", "{model}", "s3://c/d"], "python -m streamer copy"),
        (["pull", "{model}", "file:///tmp/d"], "write the path"),
    ],
)
def test_the_command_between_two_urls_is_named_regression(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    done = invoke(*(word.format(model=tmp_path / "model") for word in words), "--json")
    assert done.exit_code == 2
    assert said in json.loads(done.stdout)["message"]
    assert not list(Path().iterdir())


def test_the_index_shows_up_last(s3_server: SeaweedServer, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model", size=400_000)
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        pushed(tmp_path / "model", Target(f"s3://private/last-{tmp_path.name}", options))
    shown = [path for method, path in proxy.requests if method == "PUT" and "partNumber" not in path]
    assert "model.safetensors.index.json" in shown[-1]


@pytest.mark.usefixtures("short_pauses")
def test_a_push_that_failed_goes_on_and_sends_no_whole_file_again(s3_server: SeaweedServer, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model", size=400_000)
    uri, options = f"s3://private/resumed-{tmp_path.name}", s3_server.storage_options()

    def refusing(method: str, path: str) -> Fault:
        return "refuse" if method in ("PUT", "POST") and "00003-of" in path else None

    with ForwardingProxy(s3_server.port, refusing) as proxy:
        through = {**options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        hasty = streamer.Options(block_deadline_s=0.5)
        with pytest.raises(streamer.StorageError, match="not all files are there"):
            pushed(tmp_path / "model", Target(uri, through), options=hasty)
    report = pushed(tmp_path / "model", Target(uri, options))
    assert report.kept_files >= 2
    assert files(uri, options) == content_of(tmp_path / "model")


def test_a_push_that_is_killed_goes_on(s3_server: SeaweedServer, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    uri, options = f"s3://private/killed-{tmp_path.name}", s3_server.storage_options()
    code = (
        "import os, sys, streamer._save.writing as w; from streamer._cli import main\n"
        "show = w.Writing.show\n"
        "def dying(self, path, *more):\n"
        "    show(self, path, *more)\n"
        "    if '00002' in path: os.kill(os.getpid(), 9)\n"
        "w.Writing.show = dying\n"
        "main(sys.argv[1:])"
    )
    words = ["push", str(tmp_path / "model"), uri, "--storage-options", json.dumps(options)]
    killed = subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    with pytest.raises(streamer.StreamerError):
        streamer.load(uri, storage_options=options, framework="np")
    done = invoke(*words, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["kept_files"] >= 2
    assert files(uri, options) == content_of(tmp_path / "model")


def test_one_of_two_writers_gets_an_error(s3_server: SeaweedServer, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    checkpoint(tmp_path / "other", 5.0)
    target = Target(f"s3://private/two-{tmp_path.name}", s3_server.storage_options())

    def meanwhile(done: int, total: int) -> None:
        if done < total:
            push(str(tmp_path / "other"), target, PullArguments(), progress=False)

    with pytest.raises(streamer.StreamerError):
        push(str(tmp_path / "model"), target, PullArguments(), progress=meanwhile)
    assert files(target.uri, s3_server.storage_options()) == content_of(tmp_path / "other")


def test_a_file_that_changes_during_the_call_is_reported_and_not_shown(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "a.bin").write_bytes(b"a" * 100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamer.core.verification.file_bytes.read_ranges", _changing_reads(source / "a.bin"))
        with pytest.raises(streamer.ChangedError, match="changed while it was read"):
            push(str(source), Target(str(tmp_path / "there")), PullArguments(), progress=False)
    assert not (tmp_path / "there/a.bin").exists()


def _changing_reads(file: Path) -> Any:
    from streamer.core.engine.byte_reads import read_ranges

    def read(*arguments: Any, **named: Any) -> Any:
        found = read_ranges(*arguments, **named)
        file.write_bytes(b"c" * 100)
        return found

    return read


def test_a_missing_shard_is_reported_before_a_byte_is_sent(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    (tmp_path / "model/model.safetensors.index.json").unlink()
    (tmp_path / "model/model-00002-of-00003.safetensors").unlink()
    with pytest.raises(streamer.StreamerError, match=r"00002|shard"):
        pushed(tmp_path / "model", Target(str(tmp_path / "there")))
    assert not (tmp_path / "there").exists()


@each_row(
    ("words", "code"),
    [
        (["push", "/no/such/folder", "memory://x"], 2),
        (["copy", "/no/such/folder", "memory://x"], 66),
        (["push", "{model}", "hf://org/model@0000000000000000000000000000000000000000"], 2),
        (["push", "{model}", "{model}/inside"], 2),
        (["push", "{model}", "memory://x", "--storage-options", "[]"], 2),
        (["push", "{model}", "memory://x", "--include", "*.none"], 66),
        (["copy", "{model}", "memory://x", "--to-options", "1"], 2),
    ],
)
def test_wrong_use_has_its_exit_code_and_one_json_object(words: list[str], code: int, tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    done = invoke(*(word.format(model=tmp_path / "model") for word in words), "--json")
    assert done.exit_code == code, done.output
    assert json.loads(done.stdout)["exit_code"] == code


COPY = """
import json, resource, sys
import streamer
from streamer._cli import main
from streamer._push.push import Target, push
from streamer._pull.record import PullArguments
options = streamer.Options(memory_limit_bytes="64MiB")
small, large, target, of_target = sys.argv[1:]
push(small, Target(target + "-small", json.loads(of_target)), PullArguments(options=options), progress=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
push(large, Target(target, json.loads(of_target)), PullArguments(options=options), progress=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_copy_takes_no_more_memory_than_a_few_parts(s3_server: SeaweedServer, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small/a.bin").write_bytes(b"a" * (17 << 20))
    (tmp_path / "large").mkdir()
    (tmp_path / "large/a.bin").write_bytes(b"a" * (300 << 20))
    options = json.dumps(s3_server.storage_options())
    words = [str(tmp_path / "small"), str(tmp_path / "large"), f"s3://private/memory-{tmp_path.name}", options]
    ran = subprocess.run([sys.executable, "-c", COPY, *words], check=True, capture_output=True, text=True)
    assert int(ran.stdout) < 64 + 64  # MiB
