"""`publish`, ``@latest`` and `watch`: versions are whole, have an order, and stay as long as the grace period says."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from group_ranks import ranks_tell, values
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer
from servers.writable import Answer, Sent, Storage, error_of, writable

import streamer
from streamer._cli import main
from streamer._push import publish as publishing
from streamer._versions import LATEST, Pointer, Version, published, read_pointer, split
from streamer.backends.posix.store import PosixStore
from streamer.core.errors import FormatError
from streamer.core.options.settings import resolve
from streamer.integrations.serving.weights_location import weights_of
from streamer.integrations.transformers import save_pretrained
from streamer.plugins import open_store

NAME = "20261128T193800.123456Z-1a2b3c4d"


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full((100,), value) for name in "abc"}


def value_of(found: dict[str, torch.Tensor]) -> float:
    """Return the only value in all tensors; a mixture has several."""
    values = {float(each) for tensor in found.values() for each in tensor}
    assert found.keys() == {*"abc"}
    assert len(values) == 1
    return values.pop()


@dataclass
class There:
    """A folder of versions."""

    url: str
    options: dict[str, Any]

    def publish(self, value: float, **how: Any) -> streamer.PublishReport:
        how = {"max_shard_bytes": 400, "progress": False, **how}
        return streamer.publish(tensors(value), self.url, storage_options=self.options, **how)

    def load(self, version: str = LATEST) -> float:
        return value_of(streamer.load(f"{self.url}@{version}", storage_options=self.options, progress=False))

    def listed(self) -> list[str]:
        """Return the names in the pointer, in their order."""
        with closing(open_store(self.url, self.options)) as store:
            read = read_pointer(store, resolve(None))
            assert read is not None
            return [each.name for each in read[0].versions]

    def watch(self, **how: Any) -> streamer.watch:
        return streamer.watch(self.url, storage_options=self.options, **how)


@pytest.fixture(params=["s3", "gs", "az", "http", "memory", "local"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> There:
    if request.param == "memory":
        return There(f"memory://top/{tmp_path.name}", {})
    if request.param == "local":
        return There(str(tmp_path / "run"), {})
    if request.param == "http":
        web: NginxServer = request.getfixturevalue("http_server")
        return There(f"http://127.0.0.1:{web.http_port}/dav/saved/{tmp_path.name}", {})
    fixture = {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[request.param]
    server: SeaweedServer | GcsServer | AzuriteServer = request.getfixturevalue(fixture)
    return There(f"{request.param}://private/{tmp_path.name}", server.storage_options())


def test_versions_are_published_loaded_and_removed(there: There) -> None:
    names = [there.publish(value).version for value in (1.0, 2.0, 3.0)]
    assert names == sorted(names)
    assert there.load() == 3.0
    assert [there.load(name) for name in names] == [1.0, 2.0, 3.0]
    assert [*there.watch(timeout_s=0)] == [f"{there.url}/{names[-1]}"]
    assert there.publish(4.0, keep=2).removed == ()  # a load may still read them
    report = there.publish(5.0, keep=2, grace_s=0)
    assert report.removed == (*names,)
    assert there.load() == 5.0
    for name in names:
        with pytest.raises(streamer.ObjectNotFoundError):
            there.load(name)


class Readers:
    """Threads whose failures are raised at the end, with a reader of the latest version among them."""

    def __init__(self, there: There, values: set[float], keep: int | None) -> None:
        self.there, self.values, self.keep = there, values, keep
        self.published: dict[str, float] = {}
        self.is_over, self.failures = threading.Event(), list[BaseException]()

    def publish(self, values: range) -> None:
        try:
            for value in values:
                version = self.there.publish(float(value), keep=self.keep, grace_s=0).version
                self.published[version] = float(value)
        except BaseException as error:
            self.failures.append(error)

    def read(self) -> None:
        try:
            while not self.is_over.is_set():
                try:
                    assert self.there.load() in self.values
                except (streamer.ObjectNotFoundError, streamer.ChangedError):
                    assert self.keep
        except BaseException as error:
            self.failures.append(error)

    def run(self, *firsts: int) -> None:
        threads = [threading.Thread(target=self.publish, args=(range(first, first + 3),)) for first in firsts]
        reader = threading.Thread(target=self.read)
        for each in (*threads, reader):
            each.start()
        for each in threads:
            each.join()
        self.is_over.set()
        reader.join()
        for each in self.failures:
            raise each


@pytest.mark.parametrize("keep", [None, 1])
def test_publishers_at_once_and_a_reader_in_between(keep: int | None, there: There) -> None:
    """Each version is whole and has its place; the reader gets one whole version, or an error if it was removed."""
    if there.url.startswith("memory"):
        pytest.skip("fsspec's memory shows a file as soon as it is opened")
    there.publish(0.0)
    readers = Readers(there, {0.0, *map(float, range(10, 13)), *map(float, range(20, 23))}, keep)
    firsts = [10] if there.url.startswith("http") else [10, 20]  # that server has no conditions for several writers
    readers.run(*firsts)
    (last,) = there.watch(timeout_s=0)
    assert there.load() == readers.published[last.rpartition("/")[2]]
    assert there.listed()[-1] == last.rpartition("/")[2]
    if keep is None:
        assert all(there.load(name) == value for name, value in readers.published.items())
        assert len(there.listed()) == 1 + 3 * len(firsts)


@each_row("removed", [False, True])
@each_row("content", [None, b"global_step1000", b"{}", b"", b"[" * 100_000, b"x" * (1 << 21)])
def test_a_pointer_that_is_lost_or_another_programs_is_an_error_that_says_so(
    content: bytes | None, removed: bool, tmp_path: Path
) -> None:
    there = There(str(tmp_path / "run"), {})
    version = there.publish(1.0).version if removed else ""
    pointer = tmp_path / "run" / LATEST
    if content is None:
        pointer.unlink(missing_ok=True)
    else:
        pointer.parent.mkdir(exist_ok=True)
        pointer.write_bytes(content)
    kind = streamer.ObjectNotFoundError if content is None else FormatError
    said = "no published versions: its file 'latest' is missing, or" if content is None else "is no pointer"
    with pytest.raises(kind, match=said):
        there.load()
    if content is not None:
        with pytest.raises(FormatError, match="is no pointer"):
            there.publish(2.0)
        assert pointer.read_bytes() == content
    if removed:
        assert there.load(version) == 1.0
        pointer.unlink(missing_ok=True)
        there.publish(3.0)
        assert there.load() == 3.0


def test_a_version_that_is_gone_is_not_called_a_lost_pointer(tmp_path: Path) -> None:
    there = There(str(tmp_path / "run"), {})
    version = there.publish(1.0).version
    shutil.rmtree(tmp_path / "run" / version)
    for name in (version, LATEST):
        with pytest.raises(streamer.ObjectNotFoundError) as raised:
            there.load(name)
        assert "no published versions" not in str(raised.value)


def test_where_nothing_may_be_listed_a_plain_name_is_loaded_as_before() -> None:
    """S3 answers 403, not 404, for an object that is absent, if the login may not list the bucket."""
    with writable("s3") as server:
        server.objects["bkt/run@latest/model.safetensors"] = save(tensors(1.0)), {"ETag": '"1"'}
        denied = error_of(server, 403, "AccessDenied")
        server.script = lambda sent: denied if sent.name == "bkt/run/latest" else None
        uri = f"{server.uri('run')}@latest/model.safetensors"
        assert value_of(streamer.load(uri, storage_options=server.options())) == 1.0
        server.objects["bkt/one@latest"] = save(tensors(2.0)), {"ETag": '"2"'}
        server.script = lambda sent: denied if sent.name == "bkt/one/latest" else None
        assert There(server.uri("one"), server.options()).load() == 2.0


def test_the_order_is_that_of_the_pointer_whatever_the_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) - timedelta(days=400)

    there = There(str(tmp_path / "run"), {})
    first = there.publish(1.0).version
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "datetime", Behind)
        patched.setattr(publishing.time, "time", lambda: Behind.now(timezone.utc).timestamp())
        second = there.publish(2.0, keep=1, grace_s=0).version
        assert second < first
        assert there.load() == 2.0
        assert [*there.watch(timeout_s=0)] == [f"{there.url}/{second}"]
    assert there.publish(3.0, keep=1).removed == ()
    assert there.load() == 3.0


def test_an_open_checkpoint_stays_with_its_version(tmp_path: Path) -> None:
    there = There(str(tmp_path / "run"), {})
    there.publish(1.0)
    with streamer.open(f"{there.url}@{LATEST}") as checkpoint, streamer.stream(f"{there.url}@{LATEST}") as stream:
        there.publish(2.0)
        assert value_of(checkpoint.get_tensors()) == value_of(dict(stream)) == 1.0
        assert value_of(pickle.loads(pickle.dumps(checkpoint)).get_tensors()) == 1.0


@pytest.mark.parametrize("there", ["s3", "local"], indirect=True)
def test_the_ranks_of_a_group_load_one_version(there: There, tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        there.publish(value)
    streamer.save(tensors(2.0), tmp_path / "expected")
    case = {"uri": f"{there.url}@{LATEST}", "storage_options": there.options, "expected": str(tmp_path / "expected")}
    (reported,) = ranks_tell(2, ("whole", case))
    assert all(each["complete"] and not each["wrong"] for each in values(reported))


def test_a_list_of_uris_names_a_version_each(tmp_path: Path) -> None:
    for name in "ab":
        streamer.publish({name: torch.ones(2)}, tmp_path / name)
    assert streamer.load([f"{tmp_path}/a@latest", f"{tmp_path}/b@latest"]).keys() == {"a", "b"}


def test_what_is_not_published_keeps_its_name(tmp_path: Path) -> None:
    plain = f"{tmp_path}/model@latest"
    streamer.save(tensors(1.0), plain)
    assert value_of(streamer.load(plain)) == 1.0
    with pytest.raises(streamer.UsageError, match=r"a folder or a file named .*model@latest"):
        streamer.publish(tensors(2.0), tmp_path / "model")
    streamer.publish(tensors(2.0), tmp_path / "run")
    for uri in (f"{tmp_path}/run@latest", f"{tmp_path}/run@{NAME}"):
        with pytest.raises(streamer.UsageError, match="stands for a published version"):
            streamer.save(tensors(3.0), uri, overwrite=True)
        run = CliRunner().invoke(main, ["push", plain + "/", uri])
        assert run.exit_code == 2
        assert "stands for a published version" in run.stderr
    (tmp_path / "run@latest").mkdir()
    assert value_of(streamer.load(f"{tmp_path}/run@latest")) == 2.0
    streamer.save(tensors(4.0), tmp_path / "other")
    (tmp_path / "other").rename(tmp_path / "run@latest")
    assert value_of(streamer.load(f"{tmp_path}/run@latest/")) == 4.0  # a slash: the name as it is


@each_row(
    ("uri", "found"),
    [
        ("s3://b/run@latest", ("s3://b/run", "latest")),
        ("/m/a@b@latest", ("/m/a@b", "latest")),
        (f"run@{NAME}", ("run", NAME)),
        ("https://me:pw@host/run@latest", ("https://me:pw@host/run", "latest")),
        ("hf://org/model@latest", None),
        ("s3://bucket@latest", None),
        ("https://user@latest", None),
        ("s3://AKID:SECRET@latest", None),
        ("simplecache::s3://b/run@latest", None),
        ("s3://b/run@latest/", None),
        ("s3://b/run@latest/model.safetensors", None),
        ("s3://b/@latest", None),
        ("s3://b/run@Latest", None),
        ("s3://b/run@main", None),
        ("s3://b/run@20261128", None),
        ("s3://b/run@latest?versionId=3", None),
        ("https://host/run?a=b@latest", None),
        ("s3://b/run?a=b@latest", ("s3://b/run?a=b", "latest")),
    ],
)
def test_which_uris_name_a_version(uri: str, found: tuple[str, str] | None) -> None:
    assert split(uri) == found


def test_commands_and_functions_take_the_latest_version(tmp_path: Path) -> None:
    model = tmp_path / "model"
    streamer.save(tensors(1.0), model, max_shard_bytes=400)
    (model / "config.json").write_text("{}")
    (model / "sub").mkdir()
    (model / "sub" / "vocab.txt").write_text("a")
    run = tmp_path / "run"
    report = streamer.publish(model, run, progress=False)
    latest = f"{run}@latest"
    for command in (["check", latest, "--full"], ["manifest", latest], ["pull", latest, str(tmp_path / "pulled")]):
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert (done.exit_code, command) == (0, command), done.output
    assert (tmp_path / "pulled" / "sub" / "vocab.txt").read_text() == "a"
    done = CliRunner().invoke(main, ["copy", latest, str(tmp_path / "copied")], catch_exceptions=False)
    assert (done.exit_code, (tmp_path / "copied" / "config.json").read_text()) == (0, "{}")
    assert streamer.load_into(latest, tensors(0.0), verify="manifest").uri.endswith(report.version)
    assert streamer.publish(tensors(2.0), run, keep=1, grace_s=0, progress=False).removed == (report.version,)
    assert not (run / report.version).exists()


def test_the_commands_publish_and_list(tmp_path: Path) -> None:
    streamer.save(tensors(1.0), tmp_path / "model")
    run = str(tmp_path / "run")

    def called(*words: str) -> tuple[int, Any]:
        done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout)

    reports = [called("publish", f"{tmp_path}/model", run, "--keep", "1", "--grace", "0") for _ in range(2)]
    assert [code for code, _ in reports] == [0, 0]
    (_, first), (_, second) = reports
    assert second["removed"] == [first["version"]]
    assert called("versions", run) == called("versions", f"{run}@latest") == (0, [second["version"]])
    code, failure = called("versions", f"{tmp_path}/none")
    assert (code, failure["error"]) == (66, "ObjectNotFoundError")
    code, failure = called("publish", f"{tmp_path}/none", run)
    assert (code, failure["error"]) == (66, "ObjectNotFoundError")
    assert called("versions", run) == (0, [second["version"]])


def test_a_module_with_tied_weights_is_published(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    streamer.publish(model, tmp_path / "run", metadata={"step": "3"}, progress=False)
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    other[1].weight = other[0].weight
    assert streamer.load_into(f"{tmp_path}/run@latest", other).metadata["step"] == "3"
    assert torch.equal(other[1].weight, model[0].weight)


@each_row(
    ("given", "kind", "said"),
    [
        ({"keep": 0}, streamer.OptionError, "keep is None or a number"),
        ({"keep": True}, streamer.OptionError, "keep is None or a number"),
        ({"grace_s": -1}, streamer.OptionError, "grace_s a number of seconds"),
        ({"grace_s": float("nan")}, streamer.OptionError, "grace_s a number of seconds"),
        ({"grace_s": "1h"}, streamer.OptionError, "grace_s a number of seconds"),
        ({"overwrite": True}, streamer.UsageError, "takes no overwrite="),
        ({"uri": "run@latest"}, streamer.UsageError, "below a folder"),
        ({"uri": "model.safetensors"}, streamer.UsageError, "below a folder"),
        ({"tensors": 3}, streamer.UsageError, "cannot be saved"),
        ({"tensors": "model", "metadata": {}}, streamer.UsageError, "as it is, without metadata="),
    ],
)
def test_what_cannot_be_published_is_refused_before_a_byte_is_written(
    given: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        streamer.publish(
            **{"tensors": tensors(1.0)} | given | {"uri": tmp_path / "new" / given.get("uri", "run")}  # type: ignore[arg-type]
        )
    assert not (tmp_path / "new").exists()


@each_row(
    ("uri", "options"),
    [
        ("http://127.0.0.1:9/run?signature=1", {}),
        ("https://127.0.0.1:9/run?signature=1", {}),
        ("gs://bucket/run#5", {"token": "anon", "endpoint_url": "http://127.0.0.1:9"}),
    ],
)
def test_a_url_below_which_no_folder_can_be_made_is_refused_regression(uri: str, options: dict[str, Any]) -> None:
    # The files of a version lay in the folder itself, and to prune it removed all of them.
    with pytest.raises(streamer.UsageError, match=r"a query|no folder can be made below"):
        streamer.publish(tensors(1.0), uri, storage_options=options)
    if "?" in uri:
        for look in (streamer.watch, lambda uri: published(uri, None)):
            with pytest.raises(streamer.UsageError, match="a query"):
                look(uri)


def test_a_folder_without_weights_is_refused_before_a_byte_is_written_regression(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(streamer.UsageError, match="no weights in this folder"):
        streamer.publish(tmp_path / "model", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_in_the_place_of_the_pointer_is_found_first_regression(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    pointer = tmp_path / "run" / LATEST
    pointer.mkdir() if kind == "folder" else pointer.symlink_to(tmp_path / "nowhere")
    with pytest.raises(streamer.UsageError, match="in the place of the pointer 'latest'"):
        streamer.publish(tensors(1.0), tmp_path / "run")
    assert [*(tmp_path / "run").iterdir()] == [pointer]


def test_engines_refuse_the_latest_version_and_take_a_named_one() -> None:
    for name in ("s3://b/run@latest", "/m/run@latest"):
        with pytest.raises(streamer.UsageError, match="could find different versions"):
            weights_of(name, None, None, None)
    assert weights_of(f"s3://b/run@{NAME}", None, None, None) == f"s3://b/run/{NAME}"
    assert weights_of("s3://b/run@latest/", None, None, None) == "s3://b/run@latest/"


def test_a_configuration_is_read_from_the_latest_version(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = tmp_path / "model"
    for value in (64, 96):
        streamer.save(tensors(1.0), model, overwrite=True)
        (model / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": value}))
        streamer.publish(model, tmp_path / "run", progress=False)
    found = streamer.transformers.from_pretrained(transformers.AutoConfig, f"{tmp_path}/run@latest")
    assert found.hidden_size == 96


def test_versions_are_published_below_a_bucket_itself_regression() -> None:
    with writable("s3") as server:  # no plain name bucket@latest is looked for
        there = There("s3://bkt", server.options())
        assert [*there.watch(timeout_s=0)] == []
        assert [f"s3://bkt/{there.publish(1.0).version}"] == [*there.watch(timeout_s=0)]


def test_links_in_a_version_are_removed_and_what_they_lead_to_stays_regression(tmp_path: Path) -> None:
    there = There(str(tmp_path / "run"), {})
    first, second = (tmp_path / "run" / there.publish(value).version for value in (1.0, 2.0))
    there.publish(3.0)
    first.rename(tmp_path / "moved")
    first.symlink_to(tmp_path / "moved")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes").write_text("kept")
    (second / "folder").symlink_to(tmp_path / "kept")
    (second / "file").symlink_to(tmp_path / "kept" / "notes")
    assert len(there.publish(4.0, keep=1, grace_s=0).removed) == 3
    assert not first.is_symlink()
    assert not second.exists()
    assert value_of(streamer.load(tmp_path / "moved")) == 1.0
    assert (tmp_path / "kept" / "notes").read_text() == "kept"


def test_the_folder_that_a_killed_removal_left_empty_is_removed_regression(tmp_path: Path) -> None:
    there = There(str(tmp_path / "run"), {})
    first = tmp_path / "run" / there.publish(1.0).version
    for each in first.iterdir():
        each.unlink()
    assert there.publish(2.0, keep=1, grace_s=0).removed == (first.name,)
    assert not first.exists()


def test_a_library_does_not_save_to_a_version_regression(tmp_path: Path) -> None:
    class Saved:
        def save_pretrained(self, folder: str) -> None:
            Path(folder, "config.json").write_text("{}")

    there = There(str(tmp_path / "run"), {})
    there.publish(1.0)
    with pytest.raises(streamer.UsageError, match="stands for a published version"):
        save_pretrained(Saved(), f"{there.url}@{LATEST}")
    there.publish(2.0)


def test_a_pointer_that_cannot_be_written_says_where_the_version_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = There(str(tmp_path / "run"), {})
    there.publish(1.0)

    def refuse(*_: Any) -> None:
        raise streamer.AccessDeniedError("no", uri="latest")

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "write_whole", refuse)
        with pytest.raises(
            streamer.AccessDeniedError, match=r"no\. The version is complete at .*/run/2.*publish again"
        ):
            there.publish(2.0)
    assert there.load() == 1.0
    there.publish(3.0)
    assert there.load() == 3.0


def test_files_that_could_not_be_removed_are_removed_by_the_next_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = There(str(tmp_path / "run"), {})
    first = there.publish(1.0).version
    with monkeypatch.context() as patched:
        patched.setattr(PosixStore, "remove", lambda *_: (_ for _ in ()).throw(streamer.AccessDeniedError("no")))
        assert there.publish(2.0, keep=1, grace_s=0).removed == ()
    assert (tmp_path / "run" / first).exists()
    assert first not in there.listed()
    there.publish(3.0)
    assert not (tmp_path / "run" / first).exists()
    assert len(there.listed()) == 2


# --- watching -------------------------------------------------------------------------------------------------------


def pointing(*names: str) -> bytes:
    return Pointer(tuple(Version(each, float(number)) for number, each in enumerate(names))).rendered()


class Watched:
    """A watch on a thread of its own, over a server that counts the requests, and may be away."""

    def __init__(self, server: Storage) -> None:
        self.server, self.looks, self.is_away = server, threading.Semaphore(0), False
        server.script = self.script
        self.versions = streamer.watch(server.uri("run"), interval_s=0.01, storage_options=server.options())
        self.got: SimpleQueue[str | None] = SimpleQueue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        for each in self.versions:
            self.got.put(each)
        self.got.put(None)

    def script(self, sent: Sent) -> Answer | None:
        self.looks.release()
        return error_of(self.server, 503, "SlowDown") if self.is_away else None

    def wait(self, looks: int) -> None:
        for _ in range(looks):
            assert self.looks.acquire(timeout=30)

    def point(self, *names: str) -> str:
        """Write the pointer; return the folder of its last version."""
        with self.server.lock:
            self.server.objects["bkt/run/latest"] = pointing(*names), {"ETag": f'"{self.server.new_id()}"'}
        return f"{self.server.uri('run')}/{names[-1]}"

    def steps(self) -> set[str]:
        """Return the kinds of the requests since the last call."""
        with self.server.lock:
            steps = {each.step for each in self.server.log}
            self.server.log.clear()
        return steps


def test_a_watch_yields_each_newest_version_and_reads_only_what_changed() -> None:
    one, two, three = (f"2026112{number}T193800.123456Z-1a2b3c4d" for number in (1, 2, 3))
    with writable("s3") as server:
        watched = Watched(server)
        watched.wait(3)  # nothing is published yet
        assert watched.got.empty()
        assert watched.point(one) == watched.got.get(timeout=30)
        assert watched.point(one, two, three) == watched.got.get(timeout=30)
        watched.is_away = True
        watched.wait(6)
        expected, watched.is_away = watched.point(one), False
        assert watched.got.get(timeout=30) == expected
        assert watched.steps() == {"head", "read"}
        watched.wait(8)
        assert watched.steps() == {"head"}
        watched.versions.close()
        watched.thread.join()
        assert watched.got.get() is None


def test_a_watch_ends_by_its_timeout_and_raises_what_does_not_pass() -> None:
    with writable("s3") as server:
        assert [*streamer.watch(server.uri("run"), timeout_s=0.0, storage_options=server.options())] == []
        server.script = lambda _: error_of(server, 403, "AccessDenied")
        with pytest.raises(streamer.AccessDeniedError):
            next(streamer.watch(server.uri("run"), storage_options=server.options()))
    for how in ({"interval_s": 0}, {"interval_s": "1h"}, {"timeout_s": -1}, {"timeout_s": float("nan")}):
        with pytest.raises(streamer.UsageError):
            streamer.watch("/run", **how)  # type: ignore[arg-type]
    with pytest.raises(streamer.UsageError):
        streamer.watch(f"/run@{NAME}")


# --- the pointer ----------------------------------------------------------------------------------------------------

CLOCKS = st.integers(0, 10_000).map(float)


@given(st.lists(st.tuples(CLOCKS, st.none() | st.integers(1, 4), st.integers(0, 3000)), max_size=12))
def test_a_pointer_keeps_what_may_be_read(publishes: list[tuple[float, int | None, int]]) -> None:
    names = [f"20261128T193800.{number:06d}Z-1a2b3c4d" for number in range(len(publishes) + 1)]
    pointer = Pointer((Version(names[0]),))
    for name, (now, keep, grace_s) in zip(names[1:], publishes, strict=True):
        before, pointer = pointer, pointer.with_version(name, now, keep, grace_s)
        assert Pointer.parsed(pointer.rendered(), "latest") == pointer
        listed = [each.name for each in pointer.versions]
        assert listed[-1] == name
        assert listed == sorted(listed)
        assert {*listed, *pointer.unwanted} == {*names[: names.index(name) + 1]}
        assert not {*listed} & {*pointer.unwanted}
        kept = before.versions if keep is None else before.versions[max(0, len(before.versions) + 1 - keep) :]
        assert {each.name for each in kept} <= {*listed}
        dropped = {*pointer.unwanted} - {*before.unwanted}
        for each in before.versions[:-1]:
            assert each.name not in dropped or (each.replaced_at or 0) + grace_s <= now
        assert before.versions[-1].name not in dropped or grace_s == 0


def test_a_time_that_was_far_ahead_does_not_keep_a_version_regression() -> None:
    names = [f"20261128T193800.{number:06d}Z-1a2b3c4d" for number in range(4)]
    pointer = Pointer((Version(names[0], 4e9), Version(names[1])))
    pointer = pointer.with_version(names[2], 1000.0, 1, 60)
    assert not pointer.unwanted  # it may have been replaced right now
    assert pointer.with_version(names[3], 1061.0, 1, 60).unwanted == (*names[:2],)


JUNK = st.recursive(st.none() | st.text() | st.integers(), st.lists)
DOCUMENTS = JUNK.map(lambda it: {"format": "streamer versions", "latest": NAME, "versions": it, "unwanted": it})


@given(st.binary(max_size=60) | DOCUMENTS.map(lambda document: json.dumps(document).encode()))
def test_any_other_content_is_no_pointer(data: bytes) -> None:
    with pytest.raises(FormatError, match="is no pointer"):
        Pointer.parsed(data, "latest")


def test_a_pointer_of_a_later_format_is_not_called_one_to_remove_regression() -> None:
    data = Pointer((Version(NAME),)).rendered().replace(b"streamer versions", b"streamer versions 2")
    with pytest.raises(FormatError, match=r"of a later format\. Use the streamer that wrote it"):
        Pointer.parsed(data, "latest")


@each_row("name", ["../other", "a/b", "", NAME + "/..", NAME + "\n", "latest"])
@each_row("place", ["versions", "unwanted", "both"])
def test_a_name_in_a_pointer_is_no_path(name: str, place: str) -> None:
    versions = (Version(name if place == "versions" else NAME),)
    unwanted = {"versions": (), "unwanted": (name,), "both": (NAME,)}[place]
    with pytest.raises(FormatError, match="is no pointer"):
        Pointer.parsed(Pointer(versions, unwanted).rendered(), "latest")
