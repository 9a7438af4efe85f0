"""``streamer::`` for users of fsspec: the calls of a file system, over a real S3, web servers, disks and memory."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import os
import pickle
import random
import secrets
import signal
import subprocess
import sys
import threading

import fsspec
import pytest
from fsspec.callbacks import Callback, NoOpCallback
from servers.scripted_http import ScriptedServer
from shown import shown_by

import streamer
from streamer.core.engine import byte_reads
from streamer.core.options.settings import resolve
from streamer.integrations.fsspec import StreamerFileSystem, remote_file, transfers
from streamer.integrations.fsspec import transfers as ranges
from streamer.integrations.fsspec.inner import ReadOnly
from streamer.integrations.fsspec.remote_file import PinnedObject

CONTENT = random.Random(0).randbytes(3_000_000)


@pytest.fixture(scope="module")
def key(s3_server):
    """The path of an object, with others beside it."""
    folder = f"private/{secrets.token_hex(4)}"
    for name, content in (("large.bin", CONTENT), ("small.txt", b"one\ntwo\n"), ("below/empty", b"")):
        s3_server.put("private", f"{folder}/{name}".removeprefix("private/"), content)
    return f"{folder}/large.bin"


@pytest.fixture
def fs(s3_server):
    return fsspec.filesystem("streamer", target_protocol="s3", target_options=s3_server.storage_options())


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    folder = f"/{secrets.token_hex(4)}"
    files.pipe_file(f"{folder}/a", CONTENT)
    yield f"{folder}/a"
    files.rm(folder, recursive=True)


@pytest.fixture
def over_memory():
    return StreamerFileSystem(target_protocol="memory")


@pytest.mark.server
def test_a_chain_is_opened_with_the_options_of_both(s3_server, key):
    with fsspec.open(
        f"streamer::s3://{key}",
        s3=s3_server.storage_options(),
        streamer={"options": streamer.Options(http_in_flight=2)},
    ) as file:
        assert isinstance(file.fs, StreamerFileSystem)
        assert file.read() == CONTENT
    fs, path = fsspec.url_to_fs(f"streamer::s3://{key}", s3=s3_server.storage_options(), streamer={"http_in_flight": 2})
    assert (fs.cat_file(path, 5, 9), path) == (CONTENT[5:9], key)
    assert fs.unstrip_protocol(path) == f"streamer::s3://{key}"
    assert (
        fsspec.url_to_fs(f"streamer::s3://{key}", s3=s3_server.storage_options(), streamer={"http_in_flight": 2})[0]
        is fs
    )


@pytest.mark.server
def test_slices_are_those_of_python(fs, key):
    for start, end in (
        (None, None),
        (0, 10),
        (-10, None),
        (-20, -10),
        (5, -5),
        (2_999_990, 4_000_000),
        (7, 3),
        (9**9, None),
    ):
        assert fs.cat_file(key, start, end) == CONTENT[start:end]


@pytest.mark.server
def test_ranges_of_several_files_come_in_their_order(fs, key):
    folder = key.rpartition("/")[0]
    paths = [key, f"{folder}/small.txt", key, f"{folder}/below/empty", key]
    parts = fs.cat_ranges(paths, [10, 0, -3, 0, 12], [20, 3, None, 5, 30])
    assert parts == [CONTENT[10:20], b"one", CONTENT[-3:], b"", CONTENT[12:30]]
    assert fs.cat_ranges([key] * 2, 1, 4) == [CONTENT[1:4]] * 2
    assert fs.cat_ranges([], [], []) == []


@pytest.mark.server
def test_the_error_of_one_file_is_in_its_place_or_raised(fs, key):
    absent = f"{key}-absent"
    first, error, last = fs.cat_ranges([key, absent, key], [0, 0, 5], [5, 5, 9])
    assert (first, last) == (CONTENT[:5], CONTENT[5:9])
    assert isinstance(error, FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="absent"):
        fs.cat_ranges([key, absent], 0, 5, on_error="raise")
    with pytest.raises(TypeError):
        fs.cat_ranges(key, 0, 5)
    with pytest.raises(ValueError, match="shorter"):
        fs.cat_ranges([key, key], [0], [5, 6])


def test_a_file_that_is_gone_when_it_is_read_does_not_fail_the_others(over_memory, memory):
    over_memory.fs.pipe_file(f"{memory}-gone", b"12345")
    objects = ranges.opened_objects([memory, f"{memory}-gone"], over_memory.pinned)
    over_memory.fs.rm(f"{memory}-gone")
    wanted = [(memory, 0, 5), (f"{memory}-gone", 0, 5), (memory, 7, 9)]
    first, error, last = ranges.read_ranges(objects, wanted, None)
    assert (first, last) == (CONTENT[:5], CONTENT[7:9])
    assert isinstance(error, FileNotFoundError)


def test_gaps_between_ranges_are_read_up_to_the_one_that_is_named():
    with ScriptedServer(CONTENT) as server:
        server.answers_head = True
        fs = fsspec.filesystem("streamer", target_protocol="http")
        starts = list(range(0, 1_000_000, 10_000))
        for max_gap, least, most in ((0, 100, 120), (10_000, 1, 10)):
            del server.requests[:]
            assert fs.cat_ranges([server.url] * 100, starts, [start + 100 for start in starts], max_gap=max_gap) == [
                CONTENT[start : start + 100] for start in starts
            ]
            assert least <= len(server.requests) <= most


@pytest.mark.server
def test_cat_takes_lists_and_patterns(fs, key):
    folder = key.rpartition("/")[0]
    small = f"{folder}/small.txt"
    assert fs.cat(small) == b"one\ntwo\n"
    assert fs.cat([small, key]) == {small: b"one\ntwo\n", key: CONTENT}
    assert fs.cat(f"{folder}/*.txt") == {small: b"one\ntwo\n"}
    assert fs.cat(folder, recursive=True) == {
        small: b"one\ntwo\n",
        key: CONTENT,
        f"{folder}/below/empty": b"",
    }


@pytest.mark.server
def test_cat_leaves_out_or_gives_the_error_of_a_file(fs, key):
    small, absent = f"{key.rpartition('/')[0]}/small.txt", f"{key}-absent"
    with pytest.raises(FileNotFoundError):
        fs.cat([small, absent])
    assert fs.cat([small, absent], on_error="omit") == {small: b"one\ntwo\n"}
    assert isinstance(fs.cat([small, absent], on_error="return")[absent], FileNotFoundError)


@pytest.mark.server
def test_what_is_listed_is_what_the_file_system_inside_lists(fs, key):
    folder = key.rpartition("/")[0]
    assert fs.ls(folder, detail=False) == fs.fs.ls(folder, detail=False)
    assert {each["name"]: each["size"] for each in fs.ls(folder)} == {
        f"{folder}/below": 0,
        key: len(CONTENT),
        f"{folder}/small.txt": 8,
    }
    assert fs.find(folder) == [f"{folder}/below/empty", key, f"{folder}/small.txt"]
    assert fs.glob(f"{folder}/*.txt") == [f"{folder}/small.txt"]
    assert (fs.info(key)["size"], fs.info(folder)["type"], fs.size(key)) == (len(CONTENT), "directory", len(CONTENT))
    assert (fs.exists(key), fs.exists(folder), fs.exists(f"{key}-absent")) == (True, True, False)
    assert (fs.isfile(key), fs.isdir(folder), fs.isdir(key)) == (True, True, False)
    assert next(fs.walk(folder))[1:] == (["below"], ["large.bin", "small.txt"])
    assert fs.modified(key) == fs.fs.modified(key)
    assert "Signature" in fs.sign(key)


@pytest.mark.server
def test_answers_are_never_those_of_a_cache(fs, s3_server):
    folder = f"private/{secrets.token_hex(4)}"
    before = fs.exists(f"{folder}/a"), fs.find(folder)
    s3_server.put("private", f"{folder}/a".removeprefix("private/"), b"1")
    assert (before, fs.exists(f"{folder}/a"), fs.find(folder)) == ((False, []), True, [f"{folder}/a"])
    assert fs.ls(folder, detail=False) == [f"{folder}/a"]
    key = fs.ukey(f"{folder}/a"), fs.checksum(f"{folder}/a")
    assert (fs.ukey(f"{folder}/a"), fs.checksum(f"{folder}/a")) == key
    s3_server.put("private", f"{folder}/a".removeprefix("private/"), b"22")
    assert fs.info(f"{folder}/a")["size"] == 2
    assert fs.ukey(f"{folder}/a") != key[0]
    assert fs.checksum(f"{folder}/a") != key[1]


@pytest.mark.server
@pytest.mark.parametrize("call", ["info", "ls", "open", "cat_file", "ukey", "size", "modified", "cat"])
def test_what_is_absent_is_a_file_not_found_error(fs, key, call):
    with pytest.raises(FileNotFoundError) as raised:
        getattr(fs, call)(f"{key}-absent")
    assert isinstance(raised.value, streamer.StreamerError)


@pytest.mark.server
def test_a_folder_is_not_opened(fs, key):
    with pytest.raises(FileNotFoundError, match="no object of this name"):
        fs.open(key.rpartition("/")[0])


@pytest.mark.server
@pytest.mark.parametrize("call", ["info", "open", "cat_file", "exists"])
def test_wrong_credentials_are_a_permission_error_without_them(s3_server, key, call):
    options = {**s3_server.storage_options(), "secret": "CANARY-SECRET-VALUE"}
    fs = fsspec.filesystem("streamer", target_protocol="s3", target_options=options)
    with pytest.raises(PermissionError) as raised:
        getattr(fs, call)(key)
    frames = shown_by(raised.value)
    assert frames
    assert "CANARY" not in f"{raised.value} {raised.value!r} {fs} {fs!r} {frames}"


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("call", ["info", "ls", "exists", "open", "cat_file"])
def test_a_server_that_is_away_is_a_connection_error_and_not_an_absent_file(call):
    options = {"key": "k", "secret": "CANARY-SECRET-VALUE", "endpoint_url": "http://127.0.0.1:1"}
    fs = StreamerFileSystem(target_protocol="s3", target_options=options, block_deadline_s=0.1)
    with pytest.raises(ConnectionError) as raised:
        getattr(fs, call)("bucket/key")
    assert "CANARY" not in f"{raised.value} {raised.value!r}"


def test_a_signature_in_a_url_is_in_no_error_and_no_text():
    with ScriptedServer(CONTENT, lambda request, answer: answer.become(404)) as server:
        server.answers_head = True
        fs = StreamerFileSystem(target_protocol="http")
        for call in (fs.info, fs.open, fs.cat_file):
            with pytest.raises(FileNotFoundError) as raised:
                call(f"{server.url}?sig=CANARYSIGNATURE")
            assert "CANARY" not in f"{raised.value} {raised.value!r} {raised.value.__cause__!r}"
    with ScriptedServer(CONTENT) as server:
        server.answers_head = True
        with fs.open(f"{server.url}?sig=CANARYSIGNATURE") as file:
            assert "CANARY" not in f"{file} {file!r}"
            assert file.read(10) == CONTENT[:10]


@pytest.mark.parametrize("name", sorted(name for name in vars(ReadOnly) if not name.startswith("_")))
def test_what_writes_is_refused_and_the_error_says_who_does(over_memory, memory, name):
    with pytest.raises(io.UnsupportedOperation, match=r"only reads\. streamer\.save and .* streamer push"):
        getattr(over_memory, name)(memory, memory)
    assert over_memory.cat_file(memory) == CONTENT


@pytest.mark.parametrize("mode", ["ab", "a", "r+b", "w+b", "wb", "w", "xb"])
def test_a_file_is_opened_to_be_read_only(over_memory, memory, mode):
    for opened in (
        lambda: over_memory.open(memory, mode),
        lambda: fsspec.open(f"streamer::memory:/{memory}", mode).open(),
    ):
        with pytest.raises(OSError, match="only reads"):
            opened()
    assert over_memory.cat_file(memory) == CONTENT


def test_every_method_of_fsspec_that_writes_is_refused():
    public = {name for name, _ in inspect.getmembers(fsspec.AbstractFileSystem, inspect.isfunction)}
    words = (
        "write",
        "put",
        "rm",
        "mv",
        "move",
        "mk",
        "makedir",
        "pipe",
        "touch",
        "upload",
        "delete",
        "copy",
        "cp",
        "rename",
    )
    writing = {name for name in public if name.startswith(words)} - {"rm_", "move_"}
    assert writing <= set(vars(ReadOnly))


def test_only_synchronous_use_is_possible_and_the_error_says_what_to_do(over_memory, memory):
    with pytest.raises(streamer.OptionError, match="AsyncFileSystemWrapper"):
        fsspec.filesystem("streamer", target_protocol="memory", asynchronous=True)
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    wrapped = AsyncFileSystemWrapper(over_memory, asynchronous=True)
    assert asyncio.run(wrapped._cat_file(memory, 3, 5)) == CONTENT[3:5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "reads from another file system"),
        ({"target_protocol": "memory", "anon": True}, "no argument 'anon'.*s3={…}"),
        ({"target_protocol": "memory", "http_in_flight": 0}, "between 1 and 256"),
        ({"target_protocol": "memory", "options": {"http_in_flight": 3}}, "options"),
        ({"target_protocol": "memory", "fs": fsspec.filesystem("memory")}, "another file system"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(streamer.UsageError, match=message):
        StreamerFileSystem(**arguments)


def test_unknown_arguments_of_a_call_are_refused(over_memory, memory):
    for call in (over_memory.open, over_memory.cat_file):
        with pytest.raises(streamer.OptionError, match="version_id"):
            call(memory, version_id="1")


def test_an_unknown_scheme_is_the_error_of_fsspec_or_ours():
    with pytest.raises(ValueError, match="Protocol not known"):
        fsspec.open("streamer::nowhere://a")
    with pytest.raises(ValueError, match="Protocol not known"):
        fsspec.filesystem("streamer", target_protocol="nowhere")


@pytest.mark.server
def test_configuration_of_fsspec_is_honoured(monkeypatch, s3_server, key):
    options = s3_server.storage_options()
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    monkeypatch.setitem(fsspec.config.conf, "streamer", {"memory_limit_bytes": 5_000_000})
    with fsspec.open(f"streamer::s3://{key}") as file:
        assert file.read(5) == CONTENT[:5]
        assert file.fs._settings.memory_limit_bytes == 5_000_000


@pytest.mark.server
def test_a_file_system_of_the_callers_is_read_with_its_options(s3_server, key):
    inside = fsspec.filesystem("s3", **s3_server.storage_options())
    fs = StreamerFileSystem(fs=inside)
    assert fs.fs is inside
    assert fs.cat_file(f"s3://{key}", 0, 5) == CONTENT[:5]


def test_any_other_file_system_can_be_inside(memory, tmp_path):
    with fsspec.open(f"streamer::simplecache::memory:/{memory}", simplecache={"cache_storage": str(tmp_path)}) as file:
        assert file.read() == CONTENT
    (tmp_path / "a b#1%20").write_bytes(CONTENT)
    with fsspec.open(f"streamer::file://{tmp_path}/a b#1%20") as file:
        assert file.read() == CONTENT
    assert fsspec.open(f"streamer::{tmp_path}/a b#1%20").open().read(3) == CONTENT[:3]


def test_a_web_server_is_read_and_listed(http_server):
    fs, path = fsspec.url_to_fs(f"streamer::{http_server.http_url}/open/model/")
    names = fs.ls(path, detail=False)
    shard = next(name for name in names if name.endswith(".safetensors"))
    assert fs.cat_file(shard) == fs.fs.cat_file(shard)
    assert fs.info(shard)["size"] == len(fs.cat_file(shard))


@pytest.mark.server
def test_a_storage_that_fsspec_does_not_know_is_read_and_listed(nfs_checkpoint):
    url, _, query = nfs_checkpoint.partition("?")
    options = dict(each.split("=") for each in query.split("&"))
    fs, path = fsspec.url_to_fs(f"streamer://{url}", target_options={name: int(each) for name, each in options.items()})
    names = fs.ls(path, detail=False)
    assert fs.isdir(path)
    assert not fs.exists(f"{path}/absent")
    shard = next(name for name in names if name.endswith(".safetensors"))
    assert fs.find(path) == sorted(names)
    assert len(fs.cat_file(shard)) == fs.info(shard)["size"]
    assert fs.ls(path.rpartition("/")[0], detail=False) == [path.removeprefix("nfs://")]
    with fs.open(shard) as file:
        assert file.read(100) == fs.cat_file(shard, 0, 100)


def test_a_download_is_whole_or_not_there(over_memory, memory, tmp_path):
    sizes = []

    class Told(Callback):
        def call(self, *arguments, **named):
            sizes.append((self.value, self.size))

    over_memory.get_file(memory, str(tmp_path / "new/copy"), callback=Told())
    assert (tmp_path / "new/copy").read_bytes() == CONTENT
    assert sizes[-1] == (len(CONTENT), len(CONTENT))
    with pytest.raises(FileNotFoundError):
        over_memory.get_file(f"{memory}-absent", str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()


@pytest.mark.usefixtures("short_pauses")
def test_a_download_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    def cut(request, answer):
        if request.begin > 1_000_000:
            answer.become(404)

    (tmp_path / "copy").write_bytes(b"old")
    with ScriptedServer(CONTENT, cut) as server:
        server.answers_head = True
        fs = StreamerFileSystem(target_protocol="http", block_bytes=100_000)
        with pytest.raises(FileNotFoundError):
            fs.get_file(server.url, str(tmp_path / "copy"))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("copy", b"old")]


def test_a_download_goes_to_where_a_link_leads_and_replaces_no_device(over_memory, memory, tmp_path):
    (tmp_path / "behind").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "behind")
    over_memory.get_file(memory, str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "behind").read_bytes() == CONTENT
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    over_memory.get_file(memory, str(tmp_path / "pipe"))
    reader.join(timeout=20)
    assert found == [CONTENT]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.server
def test_a_folder_is_copied_and_the_callback_counts_its_files(fs, key, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "SMALL_BYTES", 1000)
    callback = Callback()
    branches = []
    monkeypatch.setattr(Callback, "branched", lambda *each, **named: branches.append(each[1:]) or NoOpCallback())
    fs.get(key.rpartition("/")[0], str(tmp_path / "copy"), recursive=True, callback=callback)
    copied = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert copied == {"copy/large.bin": CONTENT, "copy/small.txt": b"one\ntwo\n", "copy/below/empty": b""}
    assert callback.value == callback.size >= 3
    assert (key, str(tmp_path / "copy/large.bin")) in branches


@pytest.mark.server
def test_many_small_files_are_read_together(s3_server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "AT_A_TIME", 3)
    folder = secrets.token_hex(4)
    for number in range(8):
        s3_server.put("private", f"{folder}/{number}", str(number).encode())
    fs = fsspec.filesystem("streamer", target_protocol="s3", target_options=s3_server.storage_options())
    sessions = []
    read = ranges.read_bytes
    monkeypatch.setattr(
        ranges, "read_bytes", lambda objects, *how: sessions.append(len(objects)) or read(objects, *how)
    )
    fs.get(f"private/{folder}/*", str(tmp_path / "copy") + "/")
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == {
        str(number): str(number).encode() for number in range(8)
    }
    assert sessions == [3, 3, 2]
    with pytest.raises(FileNotFoundError):
        fs.get([f"private/{folder}/0", f"private/{folder}/absent"], [str(tmp_path / "a"), str(tmp_path / "b")])
    assert not (tmp_path / "b").exists()


def test_a_download_into_an_open_file_comes_in_order(over_memory, memory):
    for named in ("lpath", "outfile"):
        target = io.BytesIO()
        over_memory.get_file(memory, **{named: target})
        assert target.getvalue() == CONTENT


def test_importing_fsspec_imports_nothing_of_ours_until_a_url_asks():
    code = "import sys, fsspec; print([m for m in sys.modules if m.startswith('streamer')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = "import sys, fsspec; fsspec.filesystem('streamer', target_protocol='memory'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_pickle_of_a_file_system_reads(memory, over_memory):
    again = pickle.loads(pickle.dumps(over_memory))
    assert again.cat_file(memory, 0, 5) == CONTENT[:5]


@pytest.mark.server
def test_another_process_reads_on_where_a_pickled_file_was(fs, key, tmp_path):
    with fs.open(key) as file:
        file.seek(1000)
        (tmp_path / "pickle").write_bytes(pickle.dumps((fs, file)))
    code = (
        "import pickle, sys; fs, file = pickle.load(open(sys.argv[1], 'rb')); sys.stdout.buffer.write(file.read(5000))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "pickle"], capture_output=True, check=True)
    assert done.stdout == CONTENT[1000:6000]


def in_child(work):
    """Say how a forked child ended."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.server
def test_a_forked_child_lists_and_reads_on_and_so_does_its_parent(fs, key, monkeypatch):
    monkeypatch.setattr(remote_file, "STREAM_AFTER_BYTES", 1 << 20)
    monkeypatch.setattr(byte_reads, "PIECE_BYTES", 100_000)  # the child has less than the file in memory
    with fs.open(key) as file:
        assert file.read(1_500_000) + file.read(10_000) == CONTENT[:1_510_000]

        def work():
            assert file.read(500_000) == CONTENT[1_510_000:2_010_000]  # past what the parent has in its buffer
            assert file.read() == CONTENT[2_010_000:]
            assert fs.exists(key)
            assert fs.find(key.rpartition("/")[0])
            assert fs.cat_file(key, 0, 5) == CONTENT[:5]

        assert in_child(work) == 0
        assert file.read() == CONTENT[1_510_000:]


def test_a_forked_child_looks_an_object_up_again(memory, over_memory):
    asked = []
    look_up = over_memory._inner.opened
    pinned = PinnedObject(lambda path: asked.append(path) or look_up(path), memory, resolve(None))
    pinned.read(0, 5)
    before = len(asked)

    def work():
        assert pinned.read(5, 10) == CONTENT[5:10]
        assert len(asked) == before + 1

    assert in_child(work) == 0
    assert pinned.read(5, 10) == CONTENT[5:10]
    assert len(asked) == before


@pytest.mark.server
def test_threads_share_a_file_system_and_a_file(fs, key):
    failures = []

    def work(seed):
        numbers = random.Random(seed)
        try:
            for _ in range(10):
                begin = numbers.randrange(len(CONTENT))
                assert fs.cat_file(key, begin, begin + 5000) == CONTENT[begin : begin + 5000]
                with fs.open(key) as file:
                    file.seek(begin)
                    assert file.read(5000) == CONTENT[begin : begin + 5000]
                shared.read(100)
        except BaseException as error:
            failures.append(error)

    with fs.open(key) as shared:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_file_that_nobody_closed_leaves_no_thread(memory, over_memory, monkeypatch):
    monkeypatch.setattr(remote_file, "STREAM_AFTER_BYTES", 1 << 20)
    file = over_memory.open(memory)
    file.read(1_500_000)
    file.read(1)
    del file
    gc.collect()  # the fixture of all tests looks for threads


@pytest.mark.server
@pytest.mark.parametrize("name", ["gcs", "azure"])
def test_other_object_stores_are_read(request, name, checkpoint):
    url = request.getfixturevalue(f"{name}_checkpoint")
    options = request.getfixturevalue(f"{name}_server").storage_options()
    fs, path = fsspec.url_to_fs(f"streamer::{url}", **{url.partition(":")[0]: options})
    for local in checkpoint.iterdir():
        assert fs.cat_file(f"{path}/{local.name}") == local.read_bytes()
        with fs.open(f"{path}/{local.name}") as file:
            file.seek(100)
            assert file.read(1000) == local.read_bytes()[100:1100]
    with pytest.raises(FileNotFoundError):
        fs.open(f"{path}/absent")


@pytest.mark.server
def test_azure_is_listed(azure_checkpoint, azure_server, checkpoint):
    """gcsfs is not asked: it waits a minute for an answer over gRPC, which the emulator does not have."""
    fs, path = fsspec.url_to_fs(f"streamer::{azure_checkpoint}", az=azure_server.storage_options())
    assert fs.ls(path, detail=False) == sorted(f"{path}/{each.name}" for each in checkpoint.iterdir())
    with pytest.raises(FileNotFoundError):
        fs.info(f"{path}/absent")


def test_a_checkpoint_is_loaded_through_it(checkpoint):
    through, straight = (streamer.load(uri, framework="np") for uri in (f"streamer::file://{checkpoint}", checkpoint))
    assert through.keys() == straight.keys()
    assert all((through[name] == straight[name]).all() for name in straight)
