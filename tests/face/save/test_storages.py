"""``save`` to every storage that can be written, over a socket: equal, whole or not there, and told what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from servers.azurite import AzuriteServer
from servers.forwarding import Fault, ForwardingProxy
from servers.gcs_emulator import GcsServer
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._save.writing import MOST_FILES, Writing
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.session import SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.versioned_uploads import owning
from streamer.plugins import open_store

PLACES = ("s3", "gs", "az", "memory", "local")


@dataclass(frozen=True)
class There:
    """A folder that no other test uses."""

    url: str
    options: dict[str, Any]
    limited: dict[str, Any] | None = None  # options with which it may not be written

    def names(self) -> list[str]:
        """Name the objects in it."""
        with closing(open_store(self.url, self.options)) as store:
            return [info.path.rpartition("/")[2] for info in store.find(store.root)]

    def content(self, name: str) -> bytes:
        """Read one object whole."""
        with closing(open_store(self.url, self.options)) as store:
            info = store.info(f"{store.root}/{name}")
            source = SourceObject(info.uri, store.source(info), info.size_bytes or 0)
            content, _ = read_ranges([source], [(0, 0, info.size_bytes or 0)], resolve(None))
            return bytes(content[0])


@pytest.fixture(params=PLACES)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> There:
    name = f"save-{tmp_path.name}"
    if request.param == "s3":
        s3: SeaweedServer = request.getfixturevalue("s3_server")
        return There(f"s3://private/{name}", s3.storage_options(), s3.storage_options(s3.limited))
    if request.param == "gs":
        gs: GcsServer = request.getfixturevalue("gcs_server")
        return There(f"gs://private/{name}", gs.storage_options(), gs.storage_options("stranger"))
    if request.param == "az":
        az: AzuriteServer = request.getfixturevalue("azure_server")
        return There(f"az://private/{name}", az.storage_options())
    return There(f"memory://{name}" if request.param == "memory" else f"local://{tmp_path}/{name}", {})


def tensors(value: float = 1.0, names: str = "abc", size: int = 100) -> dict[str, torch.Tensor]:
    return {name: torch.full((size,), value + at) for at, name in enumerate(names)}


def load(there: There, **how: Any) -> dict[str, torch.Tensor]:
    return streamer.load(there.url, storage_options=there.options, verify="manifest", **how)


def save(there: There, what: Any, **how: Any) -> streamer.SaveReport:
    return streamer.save(what, there.url, storage_options=there.options, **how)


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_what_is_saved_is_loaded_and_nothing_else_is_there(there: There) -> None:
    report = save(there, tensors())
    assert is_equal(load(there), tensors())
    assert there.names() == sorted(report.files) == ["model.safetensors", "model.safetensors.manifest.json"]


def test_an_object_of_several_parts_is_byte_for_byte_the_references(there: There, tmp_path: Path) -> None:
    saved = {"big": torch.randn(11 << 20), "b": torch.randn(1000), "a": torch.ones(3, dtype=torch.bfloat16)}
    save(there, saved)
    save_file(saved, tmp_path / "reference", {"format": "pt"})
    assert there.content("model.safetensors") == (tmp_path / "reference").read_bytes()


def test_an_older_checkpoint_is_replaced_only_with_overwrite(there: There) -> None:
    save(there, tensors(1.0), max_shard_bytes=400)
    before = there.names()
    with pytest.raises(streamer.UsageError, match="already"):
        save(there, tensors(2.0))
    assert there.names() == before
    report = save(there, tensors(2.0, "bcd"), max_shard_bytes=400, overwrite=True)
    assert is_equal(load(there), tensors(2.0, "bcd"))
    assert there.names() == sorted(report.files)
    assert not report.not_removed


def test_a_cancelled_save_leaves_the_older_one_and_nothing_else(there: There) -> None:
    save(there, tensors(1.0))
    before = there.names()

    def cancel(done: int, total: int) -> None:
        raise streamer.LoadCancelledError("enough")

    with pytest.raises(streamer.LoadCancelledError):
        save(there, tensors(2.0), max_shard_bytes=400, overwrite=True, progress=cancel)
    assert there.names() == before
    assert is_equal(load(there), tensors(1.0))


def test_a_second_writer_is_told(there: There) -> None:
    def meanwhile(done: int, total: int) -> None:
        if not [name for name in there.names() if name.endswith("json")]:
            save(there, tensors(1.0, "first"), progress=False)

    if there.url.startswith("memory"):
        pytest.skip("fsspec's memory shows a file as soon as it is opened")
    with pytest.raises(streamer.ChangedError, match="not saved: another program has written it meanwhile"):
        save(there, tensors(2.0), progress=meanwhile)
    assert is_equal(load(there), tensors(1.0, "first"))
    assert len(there.names()) == 2


def test_a_checkpoint_is_copied_between_storages_without_a_disk(there: There, s3_server: SeaweedServer) -> None:
    save(there, tensors())
    target = f"s3://private/copy-{abs(hash(there.url))}"
    with streamer.open(there.url, storage_options=there.options) as checkpoint:
        streamer.save(checkpoint, target, storage_options=s3_server.storage_options(), max_shard_bytes=400)
    copied = streamer.load(target, storage_options=s3_server.storage_options(), verify="manifest")
    assert is_equal(copied, tensors())


def test_without_the_right_to_write_it_is_an_access_error(there: There) -> None:
    if there.limited is None:
        pytest.skip("this server has one identity")
    with pytest.raises(streamer.AccessDeniedError):
        streamer.save(tensors(), there.url, storage_options=there.limited)
    assert there.names() == []


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_an_absent_bucket_is_reported(scheme: str, request: pytest.FixtureRequest) -> None:
    fixture = {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[scheme]
    options = request.getfixturevalue(fixture).storage_options()
    with pytest.raises(streamer.ObjectNotFoundError, match=r"no (bucket|container)"):
        streamer.save(tensors(), f"{scheme}://no-such-bucket/model", storage_options=options)


MANY = "abcdefghijkl"  # more shards than are sent at a time


def stopping() -> Any:
    """Make a progress callable that ends the save when the first shards are whole, and the last are not sent."""
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        for thread in threading.enumerate():  # the first shard shows up first, so nothing is kept before it is whole
            if thread.name == "streamer-send0":
                thread.join(60)
        if calls > MOST_FILES + 1:  # the first may be for an index of older shards
            raise streamer.LoadCancelledError("enough")

    return stop


@pytest.mark.parametrize("older", [None, 1, 3])
def test_a_save_that_was_stopped_goes_on_and_sends_no_whole_shard_again(older: int | None, there: There) -> None:
    how: dict[str, Any] = {"max_shard_bytes": 400, "resume": True, "overwrite": older is not None}
    if older is not None:
        save(there, tensors(9.0, MANY), max_shard_bytes=10_000 // older)
    with pytest.raises(streamer.LoadCancelledError):
        save(there, tensors(1.0, MANY), progress=stopping(), **how)
    if older is None:
        with pytest.raises(streamer.StreamerError):
            load(there)
    else:
        assert is_equal(load(there), tensors(9.0, MANY))
    report = save(there, tensors(1.0, MANY), **how)
    assert 400 < report.kept_bytes < report.bytes
    assert is_equal(load(there), tensors(1.0, MANY))
    assert there.names() == sorted(report.files)


def test_what_an_other_save_has_left_is_not_taken(there: There) -> None:
    how: dict[str, Any] = {"max_shard_bytes": 400, "resume": True, "overwrite": True}
    with pytest.raises(streamer.LoadCancelledError):
        save(there, tensors(1.0, MANY), progress=stopping(), **how)
    report = save(there, tensors(2.0, MANY), **how)
    assert report.kept_bytes == 0
    assert is_equal(load(there), tensors(2.0, MANY))
    assert there.names() == sorted(report.files)


def test_two_saves_that_could_be_resumed_leave_no_mixture_regression(there: There) -> None:
    have_looked = threading.Barrier(2, timeout=30)
    outcomes: dict[float, Any] = {}

    def saves(value: float) -> None:
        def wait(done: int, total: int) -> None:
            if done and not have_looked.broken:
                have_looked.wait()  # both have seen an empty place, and no shard shows up yet
                have_looked.abort()

        try:
            outcomes[value] = save(there, tensors(value, MANY), max_shard_bytes=400, resume=True, progress=wait)
        except (streamer.StreamerError, threading.BrokenBarrierError) as error:
            outcomes[value] = error

    threads = [threading.Thread(target=saves, args=(value,)) for value in (1.0, 2.0)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (failed,) = [value for value, outcome in outcomes.items() if isinstance(outcome, Exception)]
    assert isinstance(outcomes[failed], streamer.ChangedError), outcomes
    assert is_equal(load(there), tensors(3.0 - failed, MANY))
    assert there.names() == sorted(outcomes[3.0 - failed].files)


def test_the_same_tensors_can_be_saved_over_themselves_again_and_again(there: There) -> None:
    for value in (1.0, 1.0, 2.0, 1.0, 1.0):
        report = save(there, tensors(value), max_shard_bytes=400, resume=True, overwrite=True)
        assert is_equal(load(there), tensors(value))
        assert there.names() == sorted(report.files)


# --- faults on the way to S3 ---------------------------------------------------------------------------------------


@pytest.fixture
def s3_there(s3_server: SeaweedServer, tmp_path: Path) -> There:
    return There(f"s3://private/fault-{tmp_path.name}", s3_server.storage_options())


def unfinished(server: SeaweedServer, prefix: str) -> list[str]:
    client = server.client()
    try:
        uploads = client.list_multipart_uploads(Bucket="private").get("Uploads", [])
    finally:
        client.close()
    return [each["Key"] for each in uploads if each["Key"].startswith(prefix)]


class Faults:
    """Decides once or always for requests whose method and path contain something."""

    def __init__(self, method: str, part: str, fault: Fault, times: int) -> None:
        self._method, self._part, self._fault, self._left = method, part, fault, times

    def __call__(self, method: str, path: str) -> Fault:
        if method != self._method or self._part not in path or not self._left:
            return None
        self._left -= 1
        return self._fault


FAULTS = {
    "503 on a part": ("PUT", "partNumber=1", "refuse", 2),
    "the answer to a part is lost": ("PUT", "partNumber=1", "lose", 1),
    "503 on complete": ("POST", "uploadId=", "refuse", 1),
    "the answer to complete is lost": ("POST", "uploadId=", "lose", 1),
    "the answer to the manifest is lost": ("PUT", "manifest.json", "lose", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("short_pauses")
def test_a_fault_that_passes_does_no_harm(fault: str, s3_there: There, s3_server: SeaweedServer) -> None:
    with ForwardingProxy(s3_server.port, Faults(*FAULTS[fault])) as proxy:  # type: ignore[arg-type]
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        streamer.save(tensors(size=1 << 19), s3_there.url, storage_options=options)
        assert len(proxy.requests) > 5
    assert is_equal(load(s3_there), tensors(size=1 << 19))
    assert unfinished(s3_server, s3_there.url.rpartition("/")[2]) == []


def test_small_shards_are_sent_and_show_up_at_the_same_time(s3_there: There, s3_server: SeaweedServer) -> None:
    many = tensors(names="abcdefgh", size=1 << 19)
    with ForwardingProxy(s3_server.port, lambda method, path: None) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        report = streamer.save(many, s3_there.url, storage_options=options, max_shard_bytes=2 << 20)
        assert proxy.most_at_once >= 3
    assert len(report.files) == 10
    assert report.files[-1].endswith(".index.json")
    assert is_equal(load(s3_there), many)


@pytest.mark.parametrize("part", ["partNumber=1", "manifest.json", "uploads"])
@pytest.mark.usefixtures("short_pauses")
def test_a_fault_that_stays_leaves_nothing(part: str, s3_there: There, s3_server: SeaweedServer) -> None:
    method = "POST" if part == "uploads" else "PUT"
    with ForwardingProxy(s3_server.port, Faults(method, part, "refuse", 10**6)) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        hasty = streamer.Options(block_deadline_s=0.5)
        with pytest.raises(streamer.StorageError, match=r"not saved: .*503"):
            streamer.save(tensors(size=1 << 19), s3_there.url, storage_options=options, options=hasty)
    assert s3_there.names() == []
    assert unfinished(s3_server, s3_there.url.rpartition("/")[2]) == []


class AfterTheCommit:
    """Refuses each manifest that comes behind the file with which the checkpoint is complete."""

    def __init__(self, commit: str) -> None:
        self._commit, self._is_complete = commit, False

    def __call__(self, method: str, path: str) -> Fault:
        if method == "POST" and "manifest.json" in path and self._is_complete:
            return "refuse"
        is_last = method == "POST" and "uploadId=" in path and path.partition("?")[0].endswith(self._commit)
        self._is_complete = self._is_complete or is_last
        return None


@pytest.mark.parametrize(("commit", "most"), [("index.json", 400), ("model.safetensors", 4000)])
@pytest.mark.usefixtures("short_pauses")
def test_an_error_behind_the_commit_leaves_no_manifest_of_another_checkpoint_regression(
    commit: str, most: int, s3_there: There, s3_server: SeaweedServer
) -> None:
    save(s3_there, tensors(1.0), max_shard_bytes=most)
    with ForwardingProxy(s3_server.port, AfterTheCommit(commit)) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        how = {"options": streamer.Options(block_deadline_s=0.5), "overwrite": True, "max_shard_bytes": most}
        with pytest.raises(streamer.StorageError, match="the checkpoint is saved, but "):
            streamer.save(tensors(2.0), s3_there.url, storage_options=options, **how)
    assert is_equal(streamer.load(s3_there.url, storage_options=s3_there.options), tensors(2.0))
    if commit == "index.json":  # the manifest fits both
        assert is_equal(load(s3_there), tensors(2.0))
    else:
        assert "model.safetensors.manifest.json" not in s3_there.names()
    save(s3_there, tensors(3.0), max_shard_bytes=most, overwrite=True)
    assert is_equal(load(s3_there), tensors(3.0))


def test_a_checkpoint_of_shards_can_be_verified_at_any_moment_of_its_replacement(there: There) -> None:
    save(there, tensors(1.0), max_shard_bytes=400)
    seen = []
    note = Writing._note_shown

    def looking(self: Writing, *arguments: Any) -> None:
        note(self, *arguments)
        seen.append(load(there))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writing, "_note_shown", looking)
        report = save(there, tensors(2.0), max_shard_bytes=400, overwrite=True)
    assert [is_equal(each, tensors(1.0)) or is_equal(each, tensors(2.0)) for each in seen] == [True] * len(seen)
    assert len(seen) == 6  # three shards, two manifests and the index
    assert there.names() == sorted(report.files)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    streamer.save({f"layer.{n}": np.zeros(8 << 20, "u1") for n in range(12)}, tmp_path / "large")
    return tmp_path / "large"


COPY = """
import json, resource, sys, streamer
options = streamer.Options(memory_limit_bytes="64MiB")
with streamer.open(sys.argv[1], framework="np", options=options) as checkpoint:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checkpoint["layer.0"][...]
    streamer.save(checkpoint, sys.argv[2], storage_options=json.loads(sys.argv[3]), options=options)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_copy_takes_no_more_memory_than_a_few_parts(large: Path, s3_there: There) -> None:
    arguments = [str(large), s3_there.url, json.dumps(s3_there.options)]
    ran = subprocess.run([sys.executable, "-c", COPY, *arguments], check=True, capture_output=True, text=True)
    assert int(ran.stdout) < 64 + 64 + 40  # MiB: the limit, what the promise allows beside it, and botocore's modules


def uploaded(store: Any, path: str, data: bytes, replaced: Any = None) -> Any:
    """Write an object by an upload that recognises it."""
    upload = owning(store.begin_upload(path, len(data), 5 << 20, replaced), store, path, replaced)
    upload.send(0, memoryview(data))
    upload.finish()
    return upload


@pytest.mark.parametrize("size", [3, 2 << 20])
def test_an_upload_knows_its_object_from_that_of_another_program(size: int, there: There) -> None:
    with closing(open_store(there.url, there.options)) as store:
        path = f"{store.root}/model.safetensors"
        ours = uploaded(store, path, b"o" * size)
        ours.confirm()
        theirs = uploaded(store, path, b"t" * (size + 1), store.info(path))
        with pytest.raises(streamer.ChangedError, match="another program"):
            ours.confirm()
        ours.withdraw()
        ours.abort()
        assert there.content("model.safetensors") == b"t" * (size + 1)
        theirs.confirm()
        theirs.withdraw()
        assert there.names() == []
        with pytest.raises(streamer.ChangedError):
            theirs.confirm()
        theirs.withdraw()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_an_equal_object_of_another_program_is_not_taken_for_ours(scheme: str, request: pytest.FixtureRequest) -> None:
    there: There = request.getfixturevalue("cloud_there")(scheme)
    with closing(open_store(there.url, there.options)) as store:
        path = f"{store.root}/model.safetensors"
        ours = uploaded(store, path, b"equal")
        uploaded(store, path, b"equal", store.info(path))
        with pytest.raises(streamer.ChangedError):
            ours.confirm()
        ours.withdraw()
    assert there.content("model.safetensors") == b"equal"


@pytest.fixture
def cloud_there(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function from a scheme to a folder that no other test uses."""

    def there(scheme: str) -> There:
        fixture = {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[scheme]
        options = request.getfixturevalue(fixture).storage_options()
        return There(f"{scheme}://private/equal-{tmp_path.name}", options)

    return there


class Meanwhile:
    """Writes to an object, past the proxy and once, before a request whose method and path contain something."""

    def __init__(self, there: There, name: str, method: str, part: str) -> None:
        self._there, self._name, self._method, self._part = there, name, method, part
        self.is_done = False

    def __call__(self, method: str, path: str) -> Fault:
        if not self.is_done and method == self._method and self._part in path:
            self.is_done = True
            with closing(open_store(self._there.url, self._there.options)) as store:
                store.write(f"{store.root}/{self._name}", b"of another program")  # type: ignore[attr-defined]
        return None


FIRST, LAST = "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"


@pytest.mark.parametrize("replaced", [FIRST, LAST])
def test_a_shard_that_another_program_wrote_over_ends_the_save_and_stays_regression(
    replaced: str, s3_there: There, s3_server: SeaweedServer
) -> None:
    meanwhile = Meanwhile(s3_there, replaced, "PUT", "manifest.json")  # all shards are there
    with ForwardingProxy(s3_server.port, meanwhile) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(streamer.ChangedError, match=r"not saved: another program.*save again"):
            streamer.save(tensors(), s3_there.url, storage_options=options, max_shard_bytes=400)
    assert meanwhile.is_done
    assert s3_there.names() == [replaced]
    assert s3_there.content(replaced) == b"of another program"


def test_a_failed_save_leaves_a_shard_that_is_not_its_own_regression(s3_there: There, s3_server: SeaweedServer) -> None:
    meanwhile = Meanwhile(s3_there, FIRST, "PUT", "index.json")  # the first shard was confirmed
    faults = Faults("PUT", "index.json", (403, b""), 9)
    with ForwardingProxy(s3_server.port, lambda *request: meanwhile(*request) or faults(*request)) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(streamer.AccessDeniedError):
            streamer.save(tensors(), s3_there.url, storage_options=options, max_shard_bytes=400)
    assert s3_there.names() == [FIRST]


def test_each_file_is_examined_and_examined_again_before_the_index(s3_there: There, s3_server: SeaweedServer) -> None:
    with ForwardingProxy(s3_server.port, lambda *request: None) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        streamer.save(tensors(), s3_there.url, storage_options=options, max_shard_bytes=400)
        assert [method for method, _ in proxy.requests].count(
            "HEAD"
        ) == 6  # three shards, twice the manifest, the index


def test_a_writer_gets_the_advice_for_writers_regression(s3_there: There, s3_server: SeaweedServer) -> None:
    save(s3_there, tensors(), max_shard_bytes=400)
    meanwhile = Meanwhile(s3_there, "model.safetensors.index.json", "GET", "index.json")
    with ForwardingProxy(s3_server.port, meanwhile) as proxy:
        options = {**s3_there.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        with pytest.raises(streamer.ChangedError, match=r"another program has changed a file.*save again") as caught:
            streamer.save(tensors(), s3_there.url, storage_options=options, max_shard_bytes=400, overwrite=True)
    assert "oad again" not in str(caught.value)


def test_two_writers_that_resume_one_upload_are_reported_regression(s3_there: There) -> None:
    with closing(open_store(s3_there.url, s3_there.options)) as store:
        path, part = f"{store.root}/a.safetensors", memoryview(bytes(5 << 20))
        first = store.resume_upload(path, 3 * part.nbytes, part.nbytes, None)  # type: ignore[attr-defined]
        first.send(0, part)
        second = store.resume_upload(path, 3 * part.nbytes, part.nbytes, None)  # type: ignore[attr-defined]
        second.send(0, part)
        first.finish()
        with pytest.raises(streamer.ChangedError, match="another program has written it meanwhile"):
            second.send(part.nbytes, part)
