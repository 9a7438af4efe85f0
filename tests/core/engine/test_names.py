"""A name that does not exist is final, a name server that fails is asked again, a dead address is passed over.

Each load runs in a process whose hosts file and name server are the test's own.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib

import numpy
import pytest
from safetensors.numpy import save
from servers.private_names import SERVFAIL, SILENCE, NameServer, missing_for_private_names, run_with_names
from servers.scripted_http import ScriptedServer

pytestmark = pytest.mark.skipif(missing_for_private_names() is not None, reason=str(missing_for_private_names()))

DATA = os.urandom(3_000_000)

# The engine alone, without the file system of a backend, which would ask for the name itself.
READ = """
import json, sys, time, zlib
from streamer import Options, release
from streamer.core.errors import StreamerError
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

url, options, ends, keeps = sys.argv[1], *map(json.loads, sys.argv[2:5])
known = SourceObject("test://object", HttpSource(url, version_header=None), max(ends))
told = {"crcs": []}
started = time.monotonic()
for end in ends:
    session = ReadSession([known], plan_reads([Item(0, 0, end)], 0), resolve(Options(**options)))
    try:
        while items := session.next_items():
            told["crcs"].append(zlib.crc32(memoryview(session.take(items[0]))))
    except StreamerError as error:
        told.update(kind=type(error).__name__, text=str(error), attempts=error.attempts)
    told["retries"] = session.stats()["retries"]
    session.close()
    if keeps:
        time.sleep(0.2)  # the resolver has answered by the next time, as between a header and its data
    else:
        release()
told["elapsed_s"] = time.monotonic() - started
print(json.dumps(told))
"""


def read(tmp_path, url, hosts="", *, times=1, **options):
    given = {"block_bytes": 1 << 20, "http_reactors": 1, "http_in_flight": 1, **options}
    return run_read(tmp_path, url, given, [len(DATA)] * times, keeps=False, hosts=hosts)


def run_read(tmp_path, url, options, ends, *, keeps, hosts):
    """Read up to each of the ends, one after the other; `keeps` connections and what is known of the server."""
    done = run_with_names(tmp_path, READ, url, *map(json.dumps, (options, ends, keeps)), hosts=hosts)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_name_that_does_not_exist_is_final_at_once(tmp_path):
    with NameServer({}) as names:
        reported = read(tmp_path, "http://storage.test/object")
    assert (reported["kind"], reported["attempts"]) == ("ConnectError", 1)
    assert "storage.test" in reported["text"]
    assert "Check the host's name" in reported["text"]
    assert reported["elapsed_s"] < 2
    assert names.asked["storage.test"] >= 2  # libcurl's question and ours


@pytest.mark.parametrize("answer", [SERVFAIL, SILENCE], ids=["servfail", "silence"])
def test_a_name_server_that_fails_is_asked_again(tmp_path, answer):
    with NameServer({"storage.test": answer}) as names:
        reported = read(tmp_path, "http://storage.test/object", max_attempts=3)
    assert (reported["kind"], reported["attempts"]) == ("ConnectError", 3)
    assert reported["retries"] >= 2
    assert names.asked["storage.test"] >= 3


def test_a_dead_address_of_a_name_is_passed_over(tmp_path):
    with NameServer({}), ScriptedServer(DATA) as server:  # on 127.0.0.1 alone
        url = server.url.replace("127.0.0.1", "storage.test")
        reported = read(tmp_path, url, "127.0.0.2 storage.test\n127.0.0.1 storage.test\n", times=10)
        assert reported["crcs"] == [zlib.crc32(DATA)] * 10  # whichever of the two comes first
        assert reported["retries"] == 0
        reported = read(tmp_path, url, "127.0.0.2 storage.test\n", max_attempts=2)
        assert (reported["kind"], reported["attempts"]) == ("ConnectError", 2)  # the dead one alone


def test_loads_are_spread_over_the_addresses_of_a_name(tmp_path):
    with (
        NameServer({}),
        ScriptedServer(DATA) as first,
        ScriptedServer(DATA, address=("127.0.0.2", first.port)) as second,
    ):
        url = first.url.replace("127.0.0.1", "storage.test")
        reported = read(tmp_path, url, "127.0.0.1 storage.test\n127.0.0.2 storage.test\n", times=20)
        assert reported["crcs"] == [zlib.crc32(DATA)] * 20
        assert first.requests
        assert second.requests


def read_twice(tmp_path, server, **options):
    """Read the beginning and then all, as of a shard, from a name with two addresses; give what came of it."""
    url = server.url.replace("127.0.0.1", "storage.test")
    given = {"block_bytes": 64 << 10, "http_reactors": 1, "http_in_flight": 8, **options}
    hosts = "127.0.0.1 storage.test\n127.0.0.2 storage.test\n"
    reported = run_read(tmp_path, url, given, [100, len(DATA)], keeps=True, hosts=hosts)
    assert reported["crcs"] == [zlib.crc32(DATA[:100]), zlib.crc32(DATA)]
    return reported


def test_the_requests_of_one_loop_are_spread_over_the_addresses_of_a_name(tmp_path):
    def answer_slowly(request, answer):  # otherwise one connection may take all before the next one is open
        time.sleep(0.05)

    with (
        NameServer({}),
        ScriptedServer(DATA, answer_slowly) as first,
        ScriptedServer(DATA, answer_slowly, address=("127.0.0.2", first.port)) as second,
    ):
        read_twice(tmp_path, first)
        assert min(len(first.requests), len(second.requests)) >= 5


def test_an_address_that_takes_connections_and_says_nothing_is_left_for_the_other(tmp_path):
    with (
        NameServer({}),
        ScriptedServer(DATA) as server,
        socket.create_server(("127.0.0.2", server.port), backlog=64),  # the kernel takes them, and nobody answers
    ):
        assert read_twice(tmp_path, server, first_byte_timeout_s=0.5)["elapsed_s"] < 20


def test_a_retry_resolves_the_name_again(tmp_path):
    """The first server cuts the connection; by then the name stands for another one."""
    with (
        NameServer({}),
        ScriptedServer(DATA) as first,
        ScriptedServer(DATA, address=("127.0.0.2", first.port)) as second,
    ):

        def move(request, answer):
            if request.number == 0:
                (tmp_path / "hosts").write_text("127.0.0.2 storage.test\n")
                answer.sent_bytes = 1000

        first.script = move
        reported = read(tmp_path, first.url.replace("127.0.0.1", "storage.test"), "127.0.0.1 storage.test\n")
        assert reported["crcs"] == [zlib.crc32(DATA)]
        assert reported["retries"] == 1
        assert second.requests[0].begin == 1000


LOAD = """
import json, sys, time
import streamer

options = json.loads(sys.argv[2])
told, started = {}, time.monotonic()
try:
    loaded = streamer.load(sys.argv[1], framework="np", progress=False, storage_options=options)
    told["sums"] = {name: float(array.sum(dtype="f8")) for name, array in loaded.items()}
except streamer.StreamerError as error:
    told.update(kind=type(error).__name__, text=str(error), attempts=error.attempts)
told["elapsed_s"] = time.monotonic() - started
print(json.dumps(told))
"""


def load(tmp_path, url, hosts="", **options):
    done = run_with_names(tmp_path, LOAD, url, json.dumps(options), hosts=hosts)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_nfs_server_whose_name_does_not_exist_is_final_at_once(tmp_path):
    with NameServer({}) as names:
        reported = load(tmp_path, "nfs://filer.test/export/m.safetensors")
    assert (reported["kind"], reported["attempts"]) == ("ConnectError", 1)
    assert "Check the host's name" in reported["text"]
    assert names.asked["filer.test"] >= 1


ENDPOINT = "http://storage.test:9000"
LOOK_UPS = {
    "http": (f"{ENDPOINT}/m.safetensors", {}),
    "hf": ("hf://owner/name", {"endpoint": ENDPOINT, "token": False}),
    "s3": ("s3://bucket/m.safetensors", {"endpoint_url": ENDPOINT, "key": "k", "secret": "s"}),
    "gs": ("gs://bucket/m.safetensors", {"endpoint_url": ENDPOINT, "token": "anon"}),
    "chain": (f"zip://m.safetensors::{ENDPOINT}/a.zip?x=y", {}),
}


# fsspec sends a HEAD and a GET, and hides what went wrong; it is asked again. The engine looks the name up for its
# request, for its list of a server's addresses, and to tell why there is none.
MOST_LOOK_UPS = dict.fromkeys(LOOK_UPS, 3) | {"chain": 4}


@pytest.mark.parametrize("storage", LOOK_UPS)
def test_a_host_that_does_not_exist_is_called_that_at_once(tmp_path, storage):
    url, options = LOOK_UPS[storage]
    with NameServer({}) as names:
        reported = load(tmp_path, url, **options)
    assert reported["kind"] == "ConnectError"
    assert "There is no host 'storage.test': its name stands for no address (EAI_NONAME)" in reported["text"]
    assert reported["attempts"] == 1
    assert names.asked["storage.test"] <= 2 * MOST_LOOK_UPS[storage]  # for addresses of IPv4 and IPv6


@pytest.mark.parametrize("storage", ["http", "hf", "s3", "gs"])
def test_a_host_whose_name_server_fails_may_exist_and_is_asked_for_again(tmp_path, storage):
    url, options = LOOK_UPS[storage]
    with NameServer({"storage.test": SERVFAIL}) as names:
        reported = load(tmp_path, url, **options)
    assert reported["kind"] == "ConnectError"
    assert "There is no host" not in reported["text"]
    assert names.asked["storage.test"] >= 3


@pytest.mark.parametrize("answer", [SERVFAIL, SILENCE], ids=["servfail", "silence"])
def test_the_name_of_an_nfs_server_is_asked_for_again_where_the_name_server_fails(tmp_path, answer):
    with NameServer({"filer.test": answer}) as names:
        reported = load(tmp_path, "nfs://filer.test/export/m.safetensors")
    assert reported["kind"] == "ConnectError"
    assert reported["attempts"] >= 3
    assert names.asked["filer.test"] >= 3
    assert "cannot be resolved" in reported["text"]


def test_a_load_from_an_nfs_server_survives_a_failure_of_the_name_server(tmp_path, nfs_server):
    (nfs_server.export / "named.safetensors").write_bytes(save({"w": numpy.arange(1000, dtype=numpy.float32)}))
    url = nfs_server.url("named.safetensors").replace("127.0.0.1", "filer.test")
    assert "filer.test" in url
    with NameServer({"filer.test": SERVFAIL}) as names:
        # The first question fails; by the next one the name is known.
        names.on_question = lambda name: (tmp_path / "hosts").write_text("127.0.0.1 filer.test\n")
        reported = load(tmp_path, url)
    assert reported.get("sums") == {"w": 499500.0}, reported
    assert names.asked["filer.test"] >= 1


ENGINE_ALONE = """
import json, sys
from streamer import Options
from streamer.core.errors import StreamerError
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import NfsSource

known = SourceObject("nfs://filer.test/x", NfsSource("nfs://filer.test/x"), 1000)
session = ReadSession([known], plan_reads([Item(0, 0, 1000)], 0), resolve(Options(max_attempts=3)))
try:
    session.next_items()
except StreamerError as error:
    print(json.dumps({"kind": type(error).__name__, "uri": error.uri, "attempts": error.attempts}))
"""


def test_the_engine_resolves_the_name_of_an_nfs_server_as_often_as_configured(tmp_path):
    with NameServer({"filer.test": SERVFAIL}) as names:
        done = run_with_names(tmp_path, ENGINE_ALONE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"kind": "ConnectError", "uri": "nfs://filer.test/x", "attempts": 3}
    assert names.asked["filer.test"] >= 3


GIVE_UP = """
import os, signal, sys, threading, time
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

known = SourceObject("test://object", HttpSource("http://storage.test/x"), 1000)
signal.signal(signal.SIGINT, signal.default_int_handler)
given_up_at = []
def give_up():
    time.sleep(0.3)
    given_up_at.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=give_up).start()
    session = ReadSession([known], plan_reads([Item(0, 0, 1000)], 0), resolve(None))
    session.next_items()
except KeyboardInterrupt:
    print(time.monotonic() - given_up_at[0], flush=True)
"""


def test_ctrl_c_does_not_wait_for_a_silent_name_server(tmp_path):
    with NameServer({"storage.test": SILENCE}) as names:
        done = run_with_names(tmp_path, GIVE_UP)
    assert done.returncode == 0, done.stderr
    assert names.asked["storage.test"] >= 1
    assert float(done.stdout) < 1.5


def test_ctrl_c_does_not_wait_for_the_name_of_an_nfs_server(tmp_path):
    with NameServer({"filer.test": SILENCE}) as names:
        done = run_with_names(
            tmp_path, GIVE_UP.replace("HttpSource", "NfsSource").replace("http://storage", "nfs://filer")
        )
    assert done.returncode == 0, done.stderr
    assert names.asked["filer.test"] >= 1
    assert float(done.stdout) < 1.5
