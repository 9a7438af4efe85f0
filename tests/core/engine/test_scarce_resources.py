"""Too few descriptors, too little memory, too few threads: fewer at a time, or an error that says what to do.

Each load runs in a process of its own, under a limit that is set after everything is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file

SHARDS = 60
DESCRIPTORS = 32

PREPARE = """
import json, os, resource, sys
import numpy
import streamer
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource

def limit(kind, value):
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

def used_address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

def tell(**facts):
    print(json.dumps(facts))

def options(**given):
    return streamer.Options(**given)

def read(path, **given):
    size = os.stat(path).st_size
    plan = plan_reads([Item(0, 0, size)], 0)
    try:
        session = ReadSession([SourceObject(path, FileSource(path), size)], plan, resolve(options(**given)))
        tell(items=session.next_items())
    except streamer.StreamerError as error:
        errors(error)

def errors(error):
    tell(kind=type(error).__name__, text=str(error))
    os._exit(0)  # torch's own threads and libraries may not survive the limit
"""


def run(script, *arguments, timeout_s=100):
    code = textwrap.dedent(PREPARE) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "model"
    folder.mkdir()
    for number in range(SHARDS):
        save_file({f"t{number:02}": torch.full((50_000,), float(number))}, folder / f"m-{number:02}.safetensors")
    return folder


LOAD = """
    limit(resource.RLIMIT_NOFILE, int(sys.argv[2]))
    try:
        given = options(**json.loads(sys.argv[3]))
        tensors = streamer.load(sys.argv[1], framework='np', progress=False, options=given)
    except streamer.StreamerError as error:
        errors(error)
    right = all(bool((tensor == float(name[1:])).all()) for name, tensor in tensors.items())
    tell(count=len(tensors), right=right)
"""


@pytest.mark.parametrize("threads", [1, 16, 64])
def test_many_shards_are_read_with_few_descriptors(shards, threads):
    reported = run(LOAD, str(shards), str(DESCRIPTORS), json.dumps({"file_threads": threads, "block_bytes": 65536}))
    assert reported == {"count": SHARDS, "right": True}


@pytest.mark.server
def test_many_requests_are_made_with_few_descriptors(http_server, shards):
    (http_server.root / "many").symlink_to(shards)
    many = {"http_in_flight": 64, "http_reactors": 3, "block_bytes": 65536}
    reported = run(LOAD, f"{http_server.http_url}/open/many/", str(DESCRIPTORS), json.dumps(many))
    assert reported == {"count": SHARDS, "right": True}


def test_no_descriptor_at_all_is_an_error_that_says_what_to_do(shards):
    script = """
    limit(resource.RLIMIT_NOFILE, 64)
    files = []
    try:
        while True:
            files.append(open(os.devnull))
    except OSError:
        read(sys.argv[1], file_threads=4)
    """
    reported = run(script, str(shards / "m-00.safetensors"))
    assert reported["kind"] == "StorageError"
    assert "EMFILE" in reported["text"]
    assert "ulimit -n" in reported["text"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.safetensors"
    save_file({f"t{number:02}": torch.full((2_000_000,), float(number)) for number in range(40)}, path)
    return path


def test_too_little_memory_is_an_error_that_says_what_to_do(large):
    script = """
    streamer.load(sys.argv[1], names="t00", progress=False)  # whatever is made at first use is made
    limit(resource.RLIMIT_AS, used_address_space() + (160 << 20))
    try:
        tensors = streamer.load(sys.argv[1], progress=False)
    except streamer.StreamerError as error:
        errors(error)
    tell(count=len(tensors))
    """
    reported = run(script, str(large))
    assert reported["kind"] == "OutOfMemoryError"
    assert "gives no memory for the next 8000000 bytes" in reported["text"]
    assert "memory_limit_bytes" in reported["text"]


def test_a_consumer_that_lets_go_is_served_with_little_memory(large):
    script = """
    streamer.load(sys.argv[1], names="t00", progress=False)
    limit(resource.RLIMIT_AS, used_address_space() + (160 << 20))
    right = 0
    with streamer.stream(sys.argv[1], progress=False) as tensors:
        for name, tensor in tensors:
            right += bool(tensor[0] == float(name[1:]) and tensor[-1] == tensor[0])
            del tensor
    tell(right=right)
    """
    assert run(script, str(large)) == {"right": 40}


def test_memory_kept_for_the_next_tensor_never_stands_in_the_way_of_a_larger_one(tmp_path):
    path = tmp_path / "growing.safetensors"
    sizes = [1_000_000 + number * 100_000 for number in range(30)]  # 294 MB; none fits where one before it lay
    save_file({f"t{number:02}": torch.full((size,), float(number)) for number, size in enumerate(sizes)}, path)
    script = """
    streamer.load(sys.argv[1], names="t00", progress=False)
    limit(resource.RLIMIT_AS, used_address_space() + (160 << 20))
    right = 0
    with streamer.stream(sys.argv[1], progress=False) as tensors:
        for name, tensor in tensors:
            right += bool(tensor[0] == float(name[1:]) and tensor[-1] == tensor[0])
            del tensor
    tell(right=right)
    """
    assert run(script, str(path)) == {"right": len(sizes)}


def test_too_few_threads_are_enough_and_none_is_an_error(shards):
    script = """
    limit(resource.RLIMIT_AS, used_address_space() + (int(sys.argv[2]) << 20))
    read(sys.argv[1], file_threads=64, block_bytes=65536)
    """
    assert run(script, str(shards / "m-00.safetensors"), "28") == {"items": [0]}  # three stacks of 8 MiB
    reported = run(script, str(shards / "m-00.safetensors"), "2")
    assert reported["kind"] == "OutOfMemoryError"
    assert "memory_limit_bytes" in reported["text"]
