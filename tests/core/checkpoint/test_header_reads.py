"""Headers are parsed as they arrive; what is told does not depend on which came first."""

import pytest

import streamer
from streamer.core.checkpoint.catalog import _Parser
from streamer.core.engine.session import SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource

HEADER = b"\x02\0\0\0\0\0\0\0{}"


def parser_of(*sizes):
    shards = [SourceObject(f"{number}.safetensors", FileSource("/"), size) for number, size in enumerate(sizes)]
    return _Parser(shards, resolve(None))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_the_first_of_several_malformed_headers_is_reported(order):
    parser = parser_of(10, 10, 10)
    for index in order:
        parser.parse([index], [memoryview(HEADER), memoryview(b"\x02\0\0\0\0\0\0\0[]"), memoryview(b"\xff" * 10)])
    assert list(parser.headers) == [0]
    with pytest.raises(streamer.HeaderError, match="JSON") as caught:
        parser.check()
    assert caught.value.uri == "1.safetensors"


def test_a_header_of_which_a_part_was_read_is_left_for_later():
    parser = parser_of(10, 10)
    parser.parse([1, 0], [memoryview(HEADER), memoryview(HEADER[:9])])
    assert parser.unfinished() == [1]
    assert parser.sizes[1] == 10
    parser.parse([1], [memoryview(b""), memoryview(HEADER)])
    assert parser.unfinished() == []
    assert set(parser.headers) == {0, 1}
