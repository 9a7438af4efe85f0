"""Saves, pushes and copies to the Hub: huggingface_hub's own client against a stand-in, one commit or nothing."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from each_row import each_row
from group_ranks import ranks_tell, values
from group_saves import whole_tensors
from huggingface_hub import constants
from servers.hub import LARGE_BYTES, STRANGER, TOKEN, HubServer, Repository
from torch.distributed.checkpoint.api import CheckpointException

import streamer
from streamer._cli import main
from streamer.backends.hf.client import HubClient
from streamer.backends.hf.upload import RereadBytes

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # of huggingface_hub's own request
]

_numbers = itertools.count()
BAD = "hf_" + "badbadbadbadbadbadbad"
LARGE = 600_000  # float32 elements of a tensor that is in LFS


@pytest.fixture(autouse=True)
def _quick_and_quiet(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # which is a request to the public Hub
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)


class Place:
    """A repository that no other test uses."""

    def __init__(self, hub: HubServer) -> None:
        self.hub, self.name = hub, f"ada/written-{next(_numbers)}"
        self.url = f"hf://{self.name}"
        self.options = {"endpoint": hub.url, "token": TOKEN}
        hub.writes.clear()

    def made(self, **files: bytes) -> Repository:
        repository = self.hub.make(self.name)
        repository.commit({".gitattributes": b"*.bin filter=lfs\n", "README.md": b"# A model\n", **files})
        return repository

    @property
    def files(self) -> dict[str, bytes]:
        found = self.hub.repositories[f"model/{self.name}"].found("main")
        assert found is not None
        return found[1]

    def save(self, tensors, more="", **how):
        return streamer.save(tensors, self.url + more, storage_options=self.options, **how)

    def load(self, more=""):
        return streamer.load(self.url + more, framework="np", storage_options=self.options)


@pytest.fixture
def place(hub_server):
    yield Place(hub_server)
    hub_server.writes.clear()


def tensors_of(value=1.0, size=LARGE, names="ab"):
    return {name: np.full(size, value + at, "f4") for at, name in enumerate(names)}


def equal(found, wanted):
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


def failing(status, body=b""):
    def fail(request, job):
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return fail


def cut_after(request, job):
    """Do what was asked, and close the connection without the answer."""
    kept, request.wfile = request.wfile, io.BytesIO()
    job()
    request.wfile, request.close_connection = kept, True
    request.connection.shutdown(socket.SHUT_RDWR)


def test_a_save_is_one_commit_beside_what_is_there(place):
    repository = place.made()
    tensors = tensors_of()
    report = place.save(tensors, max_shard_bytes=4 * LARGE, metadata={"note": "ä"})
    assert equal(place.load(), tensors)
    assert [each["parentCommit"] for each in place.hub.writes.commits] == [next(iter(repository.commits))]
    assert {".gitattributes", "README.md", *report.files} == place.files.keys()
    assert report.files[-1] == "model.safetensors.index.json"
    assert streamer.load(place.url, framework="np", storage_options=place.options, verify="manifest").keys() == {*"ab"}


def test_a_model_goes_to_a_folder_of_a_branch(place):
    repository = place.made()
    repository.commit(place.files, "dev/2")
    model = torch.nn.Linear(4, 4)
    streamer.save_model(model, f"{place.url}@dev%2F2/sub/folder", storage_options=place.options)
    assert not any(name.startswith("sub") for name in place.files)
    found = streamer.load(f"{place.url}@dev%2F2/sub/folder", storage_options=place.options)
    assert torch.equal(found["weight"], model.weight)


def test_a_checkpoint_that_is_there_is_replaced_only_on_demand_and_whole(place):
    place.made()
    place.save(tensors_of(), max_shard_bytes=4 * LARGE)
    with pytest.raises(streamer.UsageError, match="there is a checkpoint already"):
        place.save(tensors_of(2.0))
    before = len(place.hub.writes.commits)
    place.save(tensors_of(3.0), overwrite=True)
    assert equal(place.load(), tensors_of(3.0))
    assert len(place.hub.writes.commits) == before + 1
    assert {name for name in place.files if "safetensors" in name} == {
        "model.safetensors",
        "model.safetensors.manifest.json",
    }
    place.save(tensors_of(4.0), overwrite=True, max_shard_bytes=4 * LARGE)
    assert equal(place.load(), tensors_of(4.0))
    assert "model.safetensors" not in place.files
    place.save(tensors_of(5.0), overwrite=True, max_shard_bytes=4 * LARGE, digests=False)
    assert equal(place.load(), tensors_of(5.0))  # shards of the same names, as nobody sees a mixture
    assert not any(name.endswith("manifest.json") for name in place.files)


def test_a_commit_of_somebody_else_ends_the_save_and_stays(place):
    repository = place.made()

    def commit() -> None:
        repository.commit({**place.files, "theirs.txt": b"theirs"})

    place.hub.writes.before_commit = commit
    with pytest.raises(streamer.ChangedError, match=r"not saved: somebody else has committed .*meanwhile"):
        place.save(tensors_of())
    assert place.files.keys() == {".gitattributes", "README.md", "theirs.txt"}
    assert not place.hub.writes.commits


def test_the_first_save_makes_a_private_repository(place):
    tensors = tensors_of(size=10)
    place.save(tensors)
    assert equal(place.load(), tensors)
    assert place.hub.writes.commits[0] == {"made": f"model/{place.name}", "private": True}
    other = Place(place.hub)
    other.options["private"] = False
    other.save(tensors)
    assert place.hub.writes.commits[0]["private"] is False


REFUSALS = [  # what is changed of the URL and of the options, and the error
    ("hf://{name}", {"token": False}, streamer.CredentialsError, "needs a token"),
    ("hf://{name}", {"token": BAD}, streamer.CredentialsError, "does not accept this token"),
    ("hf://{name}", {"token": STRANGER}, streamer.AccessDeniedError, "may write to this repository"),
    ("hf://{name}-no", {"token": STRANGER}, streamer.AccessDeniedError, "don't have the rights to create"),
    ("hf://spaces/{name}-no", {}, streamer.ObjectNotFoundError, "hf repos create"),
    ("hf://{name}-no@dev", {}, streamer.ObjectNotFoundError, "hf repos create"),
    ("hf://{name}@dev", {}, streamer.ObjectNotFoundError, "hf repos branch create"),
    ("hf://{name}@feature/one", {}, streamer.ObjectNotFoundError, "hf://owner/name@feature%2Fone"),
    ("hf://{name}@v1", {}, streamer.UsageError, "'v1' is no branch"),
    ("hf://{name}@{sha}", {}, streamer.UsageError, "a commit stays as it is"),
    ("hf://{name}", {"proxy": "http://127.0.0.1:1"}, streamer.OptionError, "without the option proxy"),
    ("hf://{name}", {"private": "no"}, streamer.OptionError, "private must be True or False"),
    ("hf://{name}/.git/model.safetensors", {}, streamer.StorageError, "cannot update files under"),
]


@each_row("url, options, kind, words", REFUSALS)
def test_what_cannot_be_written_is_refused_with_what_to_do(place, url, options, kind, words):
    repository = place.made()
    repository.commit(place.files, "v1")
    repository.tags.add("v1")
    before = place.files
    options = {**place.options, **options}
    url = url.format(name=place.name, sha=repository.revisions["main"])
    with pytest.raises(kind) as raised:
        streamer.save(tensors_of(size=9), url, storage_options=options)
    assert words in str(raised.value)
    assert not options["token"] or options["token"] not in "".join(traceback.format_exception(raised.value))
    assert place.files == before


def test_the_offline_mode_and_a_publish_are_refused(place, monkeypatch):
    place.made()
    with pytest.raises(streamer.UsageError, match="branches and tags are versions"):
        streamer.publish(tensors_of(size=3), f"{place.url}/run", storage_options=place.options)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(streamer.UsageError, match="HF_HUB_OFFLINE=1 forbids"):
        place.save(tensors_of(size=3))


def test_a_put_that_fails_once_is_repeated_and_one_that_always_fails_leaves_nothing(place):
    place.made()
    before = place.files
    digests = "X-Amz-Signature=PUTSIGNATURE"
    place.hub.writes.faults = {digests: [failing(500)] * 100_000}
    with pytest.raises(streamer.StorageError) as raised:
        place.save(tensors_of(), options=streamer.Options(block_deadline_s=1))
    assert raised.value.status == 500
    assert place.files == before
    assert not place.hub.writes.commits
    place.hub.writes.faults = {digests: [failing(500), failing(503)]}
    place.hub.writes.part_bytes = 1 << 20  # in parts: each is repeated from its begin
    place.save(tensors_of())
    assert equal(place.load(), tensors_of())


def test_bytes_that_arrive_wrong_are_an_error_and_no_commit(place):
    place.made()

    place.hub.writes.faults = {"X-Amz-Signature=PUTSIGNATURE": [failing(200)]}
    with pytest.raises(streamer.StorageError, match="stored bytes are not those of the hash"):
        place.save(tensors_of())
    assert not place.hub.writes.commits


def test_an_answer_to_the_commit_that_is_lost_is_asked_for(place):
    repository = place.made()
    place.hub.writes.faults = {"/commit/": [cut_after]}
    place.save(tensors_of())
    assert equal(place.load(), tensors_of())
    assert len(place.hub.writes.commits) == 1
    place.hub.writes.faults = {"/commit/": [failing(500)] * 100_000}
    with pytest.raises(streamer.StorageError, match="not saved: ") as raised:
        place.save(tensors_of(2.0), overwrite=True, options=streamer.Options(block_deadline_s=1))
    assert raised.value.status == 500
    assert equal(place.load(), tensors_of())

    def commit_of_others(request, job):
        repository.commit({**place.files, "theirs.txt": b"theirs"})
        cut_after(request, lambda: None)

    place.hub.writes.faults = {"/commit/": [commit_of_others]}
    with pytest.raises(streamer.ChangedError, match="somebody else has committed"):
        place.save(tensors_of(3.0), overwrite=True)
    assert equal(place.load(), tensors_of())


FOREIGN_ANSWERS = [(200, b""), (200, b"<html>Log in</html>"), (404, b""), (404, b"<html>No such page</html>")]


@each_row("path", ["/preupload/", "objects/batch", "/commit/"])
@each_row("status, body", FOREIGN_ANSWERS)
def test_an_answer_of_another_server_is_named_so_and_leaves_nothing_regression(place, path, status, body):
    place.made()
    before = place.files
    place.hub.writes.faults = {path: [failing(status, body)]}
    with pytest.raises(streamer.StorageError, match="The answer is not one of the Hub's") as raised:
        place.save({**tensors_of(names="a"), "new": np.full(LARGE, next(_numbers), "f4")})  # LFS has not got it yet
    assert "check the endpoint" in str(raised.value).lower()
    assert place.files == before
    place.hub.writes.faults = {}


def test_a_connection_that_is_cut_is_named_by_its_own_error_regression(place):
    place.made()
    place.hub.writes.faults = {"X-Amz-Signature=PUTSIGNATURE": [cut_after] * 100_000}
    with pytest.raises(streamer.ConnectError, match=r"during the upload \((?!RuntimeError)\w+\)"):
        place.save(tensors_of(), options=streamer.Options(block_deadline_s=1))
    assert not place.hub.writes.commits


def test_if_the_hub_cannot_be_asked_whether_it_has_committed_the_error_says_so(place, monkeypatch):
    place.made()

    def away(self, uri):
        raise streamer.AccessDeniedError("The Hub refuses access", uri=uri, status=403)

    def commit_and_go_away(request, job):
        monkeypatch.setattr(HubClient, "commit", away)
        cut_after(request, job)

    place.hub.writes.faults = {"/commit/": [commit_and_go_away]}
    with pytest.raises(streamer.StorageError, match="it is not known whether the checkpoint is saved"):
        place.save(tensors_of(), options=streamer.Options(block_deadline_s=1))
    monkeypatch.undo()
    assert "model.safetensors" in place.files


def push(folder: Path, place: Place, *more: str, url: str = ""):
    options = json.dumps(place.options)
    return CliRunner().invoke(
        main, ["push", str(folder), url or place.url, "--storage-options", options, "--json", *more]
    )


NAMES = ("a b.txt", "100%25.json", "#1.json", "ünï.bin", "sub/deep/æ.txt", "q?x=1.txt", "empty.txt", ".gitignore")


def test_a_push_is_one_commit_of_all_files_with_their_names(place, tmp_path):
    repository = place.made()
    sizes = (0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 3 << 20, 5, 7)
    for name, size in zip(NAMES, sizes, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(size))
    (tmp_path / ".gitignore").write_text("a b.txt\n*.bin")  # it is for `git add`
    (tmp_path / "README.md").write_text("# Mine\n")
    refused = push(tmp_path, place)
    assert refused.exit_code == 2
    assert "another file is there: 'README.md'" in refused.output
    pushed = push(tmp_path, place, "--replace")
    assert pushed.exit_code == 0, pushed.output
    assert len(place.hub.writes.commits) == 1
    wanted = {name: (tmp_path / name).read_bytes() for name in (*NAMES, "README.md")}
    assert place.files == {**wanted, ".gitattributes": b"*.bin filter=lfs\n"}
    again = push(tmp_path, place, "--replace")
    assert json.loads(again.output)["kept_files"] == len(wanted)
    assert len(repository.commits) == 2


def test_a_push_beside_older_shards_removes_them_in_its_commit(place, tmp_path):
    place.made()
    place.save(tensors_of(), max_shard_bytes=4 * LARGE)
    streamer.save(tensors_of(7.0), tmp_path)
    refused = push(tmp_path, place)
    assert refused.exit_code == 2
    pushed = push(tmp_path, place, "--replace")
    assert pushed.exit_code == 0, pushed.output
    assert len(json.loads(pushed.output)["removed"]) == 3
    assert equal(place.load(), tensors_of(7.0))
    assert len(place.hub.writes.commits) == 2
    streamer.save(tensors_of(8.0), tmp_path / "three", max_shard_bytes=4 * LARGE)
    streamer.save(tensors_of(9.0), tmp_path / "other", max_shard_bytes=4 * LARGE)
    for folder in ("three", "other"):  # the second has shards of the same names
        assert push(tmp_path / folder, place, "--replace").exit_code == 0
    assert equal(place.load(), tensors_of(9.0))


def test_a_copy_from_one_repository_to_another(place):
    place.made()
    place.save(tensors_of())
    other = Place.__new__(Place)
    other.hub, other.name, other.options = place.hub, f"ada/written-{next(_numbers)}", place.options
    options = json.dumps(place.options)
    how = ("--from-options", options, "--to-options", options, "--exclude", ".gitattributes")
    copied = CliRunner().invoke(main, ["copy", place.url, f"hf://{other.name}", "--json", *how])
    assert copied.exit_code == 0, copied.output
    assert other.files.items() >= {name: data for name, data in place.files.items() if name[0] != "."}.items()


def test_an_encrypted_checkpoint_and_one_of_a_cast_and_a_manifest(place):
    place.made()
    key = os.urandom(32)
    place.save(tensors_of(), "/sealed", key=key)
    found = streamer.load(f"{place.url}/sealed", framework="np", key=key, storage_options=place.options)
    assert equal(found, tensors_of())
    with streamer.open(f"{place.url}/sealed", key=key, dtype="bfloat16", storage_options=place.options) as opened:
        place.save(opened, "/cast", digests=False)
    cast = streamer.load(f"{place.url}/cast", storage_options=place.options)
    assert {each.dtype for each in cast.values()} == {torch.bfloat16}
    made = CliRunner().invoke(main, ["manifest", f"{place.url}/cast", "--storage-options", json.dumps(place.options)])
    assert made.exit_code == 0, made.output
    assert "cast/model.safetensors.manifest.json" in place.files


def test_progress_and_a_cancel(place):
    place.made()
    seen: list[tuple[int, int]] = []
    place.save(tensors_of(), "/one", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def cancel(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.save(tensors_of(), "/two", progress=cancel)
    assert not any(name.startswith("two") for name in place.files)


def test_tensors_that_change_between_the_hash_and_the_upload_are_an_error(place):
    place.made()
    model = torch.zeros(LARGE)

    def change(request, job):
        model.numpy()[-1] += 1  # no counter of torch shows it
        job()

    place.hub.writes.faults = {"/preupload/": [change]}
    with pytest.raises(streamer.ChangedError, match=f"{place.url}/model.safetensors: not saved: the bytes changed"):
        place.save({"a": model})
    assert not place.hub.writes.commits


def child(program, place):
    """Run a program in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    clean["HF_HUB_DISABLE_TELEMETRY"] = "1"
    arguments = [sys.executable, "-c", program, place.url, place.hub.url, TOKEN]
    return subprocess.run(arguments, env=clean, timeout=100, check=False, capture_output=True)


KILLED = """
import os, sys, numpy as np, streamer
_, url, endpoint, token = sys.argv
from huggingface_hub import HfApi
HfApi.create_commit = lambda *_, **__: os.kill(os.getpid(), 9)
streamer.save({"a": np.ones(600_000, "f4")}, url, storage_options={"endpoint": endpoint, "token": token})
"""


def test_a_process_that_is_killed_before_the_commit_leaves_nothing_to_see(place):
    place.made()
    before = place.files
    done = child(KILLED, place)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.files == before
    assert place.hub.writes.objects
    place.hub.writes.seen.clear()
    place.save({"a": np.ones(LARGE, "f4")})  # the Hub has the bytes
    assert "/lfs/verify" not in place.hub.writes.seen


def test_a_file_of_pieces_is_read_as_a_file():
    data = os.urandom(1000)
    pieces = [memoryview(data[begin : begin + 70]) for begin in range(0, 1000, 70)]
    file = RereadBytes(pieces, len(data), lambda _: None)
    assert file.read() == data
    for offset, whence, size in itertools.product((0, 5, 69, 70, 999), (os.SEEK_SET,), (0, 1, 70, 300)):
        assert file.seek(offset, whence) == offset
        assert file.read(size) == data[offset : offset + size]
    assert file.seek(0, os.SEEK_END) == len(data)
    assert file.read(5) == b""


def test_ranks_of_a_group_save_through_rank_0(place, monkeypatch):
    place.made()
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    how = {"mib": 3, "part_mib": 1, "kind": "mixed", "max_shard_bytes": "2MB", "storage_options": place.options}
    (reported,) = ranks_tell(2, ("saves", {"saves": [{"uri": f"{place.url}/ranks", **how}]}))
    assert values(reported)[0] == values(reported)[1]
    place.save(whole_tensors(3), "/alone", max_shard_bytes="2MB")
    assert [each["paths"][0].partition("/")[0] for each in place.hub.writes.commits] == ["ranks", "alone"]
    content = {name: data for name, data in place.files.items() if name.startswith("alone/")}
    assert content == {
        name.replace("ranks/", "alone/"): data for name, data in place.files.items() if name.startswith("ranks/")
    }


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_libraries_that_save_a_folder_make_one_commit_and_dcp_is_refused(place):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)  # it refuses an old huggingface_hub
    place.hub.make(place.name).commit({".gitattributes": b"*.bin filter=lfs\n"})
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9
        )
    )
    streamer.transformers.save_pretrained(model, place.url, storage_options=place.options)
    assert {".gitattributes", "config.json", "model.safetensors"} <= place.files.keys()
    assert len(place.hub.writes.commits) == 1
    writer = streamer.dcp.StorageWriter(f"{place.url}/dcp", storage_options=place.options)
    with pytest.raises((streamer.UsageError, CheckpointException), match="DCP writes file by file"):
        dcp.save({"a": torch.zeros(3)}, storage_writer=writer)
    assert len(place.hub.writes.commits) == 1


SAVED = """
import resource, sys, numpy as np, streamer
_, url, endpoint, token = sys.argv
how = {"storage_options": {"endpoint": endpoint, "token": token}}
streamer.save({"a": np.zeros(3 << 20, "u1")}, url + "/first", **how)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
streamer.save({"a": np.zeros(200 << 20, "u1")}, url + "/second", **how)  # pages of zeros that take no memory
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_save_never_holds_a_file_in_memory(place):
    place.made()
    assert int(child(SAVED, place).stdout) < 50 << 10  # KiB
