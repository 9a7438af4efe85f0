"""``nfs://`` without a mount, against a real NFSv4 server: whole loads, what is refused, and what the network does."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from comparison import assert_same
from servers.ganesha import NfsServer
from servers.tcp_proxy import TcpProxy

import streamer
from streamer.backends.nfs.store import NfsStore
from streamer.core import errors
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import NfsSource
from streamer.plugins import open_store

pytestmark = pytest.mark.server

MIB = 1 << 20
SMALL = os.urandom(3 * MIB + 77)


@pytest.fixture
def own_server(nfs_server):
    """A server that a test may kill."""
    del nfs_server  # only for its reason to skip
    with NfsServer() as server:
        yield server


def split(url):
    base, _, query = url.partition("?")
    return base, "?" + query


def through(proxy, url):
    return f"nfs://127.0.0.1{split(url)[0].partition('127.0.0.1')[2]}?version=4&nfsport={proxy.port}"


def session_over(url, size, *, cuts=None, **options):
    items = [Item(0, begin, end) for begin, end in cuts or [(0, size)]]
    return ReadSession(
        [SourceObject("nfs://test", NfsSource(url), size)], plan_reads(items, 0), resolve(Options(options))
    )


def Options(given):  # noqa: N802 (short where every test gives some)
    return streamer.Options(**{"block_bytes": MIB, **given})


def collect(session):
    found = {}
    while indices := session.next_items():
        found.update({index: bytes(memoryview(session.take(index))) for index in indices})
    return [found[index] for index in sorted(found)]


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        "".join,
        lambda parts: parts[0] + "/" + parts[1],
        lambda parts: parts[0] + "/model.safetensors.index.json" + parts[1],
        lambda parts: parts[0] + "/*.safetensors" + parts[1],
        lambda parts: parts[0] + "/model-0000?-of-00004.safetensors" + parts[1],
        lambda parts: [f"{parts[0]}/model-0000{i}-of-00004.safetensors{parts[1]}" for i in (1, 2, 3, 4)],
    ],
    ids=["folder", "slash", "index", "glob", "question mark", "list"],
)
def test_every_way_to_name_it_gives_equal_tensors(nfs_checkpoint, reference, form):
    assert_same(streamer.load(form(split(nfs_checkpoint))), reference)


def test_options_may_stand_outside_the_url(nfs_server, nfs_checkpoint, reference):
    base, _ = split(nfs_checkpoint)
    assert_same(streamer.load(base, storage_options={"nfsport": str(nfs_server.port)}), reference)
    assert_same(streamer.load(base.replace("127.0.0.1", f"127.0.0.1:{nfs_server.port}")), reference)


def test_small_blocks_and_little_memory_change_nothing(nfs_checkpoint, reference):
    tight = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=MIB, nfs_threads=3)
    with streamer.stream(nfs_checkpoint, options=tight) as stream:
        assert_same({name: tensor.clone() for name, tensor in stream}, reference)


def test_a_link_to_a_shard_is_a_shard_and_a_broken_one_fails_the_load(nfs_server, checkpoint, reference):
    url = nfs_server.upload_folder(checkpoint, "linked")
    first = nfs_server.export / "linked/model-00001-of-00004.safetensors"
    moved = first.rename(nfs_server.export / "elsewhere.bin")
    first.symlink_to("../elsewhere.bin")
    (nfs_server.export / "linked/model.safetensors.index.json").unlink()
    assert_same(streamer.load(url), reference)
    moved.unlink()
    with pytest.raises(errors.StorageError):
        streamer.load(url)


def test_many_reads_are_under_way_on_one_connection(nfs_server):
    data = os.urandom(24 * MIB)
    nfs_server.put("many", data)
    with TcpProxy(nfs_server.port) as proxy:
        proxy.hold_from(10)  # connecting, mounting and opening take fewer
        session = session_over(nfs_server.url("many", nfsport=proxy.port), len(data), nfs_threads=1)
        proxy.wait_for_requests(10 + 8)  # eight more, without an answer to any of them
        proxy.release()
        assert collect(session) == [data]
        assert proxy.connections == 1


def test_reads_run_on_several_connections(nfs_server):
    data = os.urandom(24 * MIB)
    nfs_server.put("several", data)
    with TcpProxy(nfs_server.port) as proxy:
        proxy.hold()
        session = session_over(nfs_server.url("several", nfsport=proxy.port), len(data), nfs_threads=2)
        proxy.wait_for_requests(2)  # the first of each connection
        proxy.release()
        assert collect(session) == [data]
        assert proxy.connections == 2


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_missing_file_and_a_missing_folder_are_not_found(nfs_server):
    for name in ("absent.safetensors", "absent/folder"):
        with pytest.raises(errors.ObjectNotFoundError, match="absent") as caught:
            streamer.load(nfs_server.url(name))
        assert caught.value.code in ("NFS4ERR_NOENT", "ENOENT")


def test_a_folder_is_not_a_file(nfs_server):
    nfs_server.put("folder.safetensors/inside", b"1")
    with pytest.raises(errors.ObjectNotFoundError, match="folder"):
        streamer.load(nfs_server.url("folder.safetensors"))


def test_a_fifo_is_refused_without_waiting(nfs_server):
    os.mkfifo(nfs_server.export / "fifo.safetensors")
    with pytest.raises(errors.StorageError, match="regular file"):
        streamer.load(nfs_server.url("fifo.safetensors"))
    with pytest.raises(errors.StorageError):
        collect(session_over(nfs_server.url("fifo.safetensors"), 10))


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_folder_with_what_is_no_file_and_has_the_name_of_a_shard_is_refused_regression(nfs_server, is_folder):
    """It was dropped in silence."""
    nfs_server.put(f"mixed-{is_folder}/a.safetensors", (2).to_bytes(8, "little") + b"{}")
    (nfs_server.export / f"mixed-{is_folder}/unrelated").mkdir()
    assert streamer.load(nfs_server.url(f"mixed-{is_folder}")) == {}
    path = nfs_server.export / f"mixed-{is_folder}/b.safetensors"
    path.mkdir() if is_folder else os.mkfifo(path)
    with pytest.raises(errors.StorageError, match=r"b\.safetensors: This is (a folder, )?not a regular file"):
        streamer.load(nfs_server.url(f"mixed-{is_folder}"))


def test_a_file_of_another_user_is_denied(nfs_server, checkpoint):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    nfs_server.put("private/model.safetensors", shard, mode=0o600)
    assert streamer.load(nfs_server.url("private/model.safetensors", uid=0, gid=0))
    with pytest.raises(errors.AccessDeniedError):
        streamer.load(nfs_server.url("private/model.safetensors", uid=4711, gid=4711))


def test_a_folder_that_may_not_be_searched_is_denied(nfs_server):
    nfs_server.put("closed/model.safetensors", b"1")
    (nfs_server.export / "closed").chmod(0o700)
    store = open_store(nfs_server.url("closed/model.safetensors", uid=4711, gid=4711))
    with pytest.raises(errors.AccessDeniedError):
        store.info(store.root)


def test_a_version_that_the_server_does_not_speak_is_no_outage_of_the_others_regression(nfs_server, nfs_checkpoint):
    """As the server had answered before, it was waited for, and so did each load of the other version."""
    streamer.load(nfs_checkpoint)
    other = nfs_checkpoint.replace("version=4", "version=3") + f"&mountport={nfs_server.port}"
    assert other != nfs_checkpoint
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(streamer.load, other, options=streamer.Options(block_deadline_s=20))
        began = time.monotonic()
        for _ in range(3):
            assert streamer.load(nfs_checkpoint, progress=False)
        with pytest.raises(streamer.ConnectError, match="version") as caught:
            refused.result(60)
    assert "has been failing" not in str(caught.value)
    assert time.monotonic() - began < 20


def test_no_server_at_that_port_is_a_connect_error():
    with pytest.raises(errors.ConnectError):
        streamer.load("nfs://127.0.0.1:1/export/model")


def test_a_server_without_an_address_is_a_connect_error():
    with pytest.raises(errors.ConnectError, match="resolved"):
        streamer.load("nfs://no-such-server.invalid/export/model")
    with pytest.raises(errors.ConnectError, match="resolved"):
        session_over("nfs://no-such-server.invalid/export/model", 10).next_items()


# --- what changes under a load --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["replaced", "rewritten"])
def test_a_file_changed_between_header_and_data_is_noticed(nfs_server, checkpoint, how):
    url = nfs_server.upload_folder(checkpoint, f"changing-{how}")
    shard = nfs_server.export / f"changing-{how}/model-00002-of-00004.safetensors"
    with streamer.open(url) as opened:
        data = shard.read_bytes()
        if how == "replaced":
            nfs_server.put(str(shard.relative_to(nfs_server.export)), data)
        else:
            shard.write_bytes(data)
        with pytest.raises(errors.ChangedError):
            opened.get_tensors()


def test_a_file_rewritten_while_it_is_read_is_noticed(nfs_server):
    path = nfs_server.put("rewritten", SMALL * 8)
    cuts = [(i * MIB, (i + 1) * MIB) for i in range(24)]
    session = session_over(nfs_server.url("rewritten"), len(SMALL) * 8, cuts=cuts, memory_limit_bytes=4 * MIB)
    for item in session.next_items():
        session.take(item)
    with path.open("r+b") as file:
        file.write(b"x")
    with pytest.raises(errors.ChangedError):
        collect(session)


def test_a_file_cut_short_is_truncated(nfs_server):
    nfs_server.put("short", SMALL[:-1])
    with pytest.raises(errors.TruncatedError):
        collect(session_over(nfs_server.url("short"), len(SMALL)))


# --- what the network does ------------------------------------------------------------------------------------------


def test_a_cut_connection_costs_nothing_but_a_new_one(nfs_server):
    data = os.urandom(32 * MIB)
    nfs_server.put("resumed", data)
    with TcpProxy(nfs_server.port) as proxy:
        cuts = [(i * MIB, (i + 1) * MIB) for i in range(32)]
        url = nfs_server.url("resumed", nfsport=proxy.port)
        session = session_over(url, len(data), cuts=cuts, memory_limit_bytes=4 * MIB, nfs_threads=1)
        first = session.next_items()
        found = {index: bytes(memoryview(session.take(index))) for index in first}
        proxy.cut()
        while indices := session.next_items():
            found.update({index: bytes(memoryview(session.take(index))) for index in indices})
        assert b"".join(found[index] for index in range(32)) == data
        assert proxy.connections == 2


def test_a_server_that_restarts_is_waited_for(own_server):
    data = os.urandom(16 * MIB)
    own_server.put("again", data)
    cuts = [(i * MIB, (i + 1) * MIB) for i in range(16)]
    session = session_over(own_server.url("again"), len(data), cuts=cuts, memory_limit_bytes=2 * MIB)
    found = {index: bytes(memoryview(session.take(index))) for index in session.next_items()}
    own_server.kill()
    own_server.restart()
    while indices := session.next_items():
        found.update({index: bytes(memoryview(session.take(index))) for index in indices})
    assert b"".join(found[index] for index in range(16)) == data


def test_a_server_that_goes_away_ends_the_load_with_an_error(own_server):
    own_server.put("gone", SMALL * 8)
    cuts = [(i * MIB, (i + 1) * MIB) for i in range(24)]
    url = own_server.url("gone")
    session = session_over(url, len(SMALL) * 8, cuts=cuts, memory_limit_bytes=2 * MIB, block_deadline_s=1.0)
    for item in session.next_items():
        session.take(item)
    own_server.kill()
    with pytest.raises(errors.ConnectError, match=f"nfs://127.0.0.1:{own_server.port} has been failing for "):
        collect(session)


def test_a_server_that_falls_silent_is_a_time_out(nfs_server):
    nfs_server.put("silent", SMALL * 8)
    with TcpProxy(nfs_server.port) as proxy:
        cuts = [(i * MIB, (i + 1) * MIB) for i in range(24)]
        patience = {"stall_timeout_s": 0.3, "connect_timeout_s": 0.3, "block_deadline_s": 1.5}
        url = nfs_server.url("silent", nfsport=proxy.port)
        session = session_over(url, len(SMALL) * 8, cuts=cuts, memory_limit_bytes=2 * MIB, **patience)
        items = session.next_items()
        proxy.hold()
        for item in items:
            session.take(item)
        with pytest.raises(errors.TransferTimeoutError):
            collect(session)


def test_leaving_early_does_not_wait_for_a_silent_server(nfs_server):
    """Nothing ever answers and every time-out is an hour: only cancelling can end this."""
    nfs_server.put("left", SMALL * 8)
    with TcpProxy(nfs_server.port) as proxy:
        hour = {"stall_timeout_s": 3600.0, "connect_timeout_s": 3600.0}
        session = session_over(nfs_server.url("left", nfsport=proxy.port), len(SMALL) * 8, **hour)
        proxy.wait_for_requests(3)
        proxy.hold()
        session.close()


def test_one_store_answers_many_threads_and_replaces_dead_connections(nfs_server):
    for number in range(16):
        nfs_server.put(f"crowd/{number}", bytes(number))
    with TcpProxy(nfs_server.port) as proxy:
        store = NfsStore(nfs_server.url("crowd", nfsport=proxy.port), {})
        paths = [f"/export/crowd/{number}" for number in range(16)]
        for _ in range(2):
            with ThreadPoolExecutor(16) as pool:
                assert [info.size_bytes for info in pool.map(store.info, paths)] == list(range(16))
            proxy.cut()
        store.close()


def test_a_copied_export_needs_no_index(nfs_server, checkpoint, reference):
    folder = nfs_server.export / "no index"
    shutil.copytree(checkpoint, folder)
    (folder / "model.safetensors.index.json").unlink()
    assert_same(streamer.load(nfs_server.url("no index")), reference)


@pytest.mark.parametrize(
    ("link", "target"),
    [("same", "real"), ("up", "../other/real"), ("absolute", "/export/links/other/real"), ("twice", "same")],
)
def test_a_link_is_followed_as_its_server_means_it(nfs_server, link, target):
    for folder in ("links/here", "links/other"):
        if not (nfs_server.export / folder / "real").exists():
            nfs_server.put(f"{folder}/real", SMALL)
    for name, leads_to in {"same": "real", link: target}.items():
        path = nfs_server.export / "links/here" / name
        path.unlink(missing_ok=True)
        path.symlink_to(leads_to)
    url = nfs_server.url(f"links/here/{link}")
    store = open_store(url)
    assert store.info(store.root).size_bytes == len(SMALL)
    assert collect(session_over(url, len(SMALL))) == [SMALL]


@pytest.mark.parametrize("target", ["loop", "../../../../outside", "nowhere"])
def test_a_link_that_leads_nowhere_is_not_found(nfs_server, target):
    nfs_server.put("loops/real", b"1")
    path = nfs_server.export / "loops/loop"
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    store = open_store(nfs_server.url("loops/loop"))
    with pytest.raises(errors.ObjectNotFoundError):
        store.info(store.root)
