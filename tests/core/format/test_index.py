"""The index of a sharded checkpoint: shard names stay in their folder, and one document has one meaning."""

import contextlib
import json

import pytest
from each_row import each_row
from hypothesis import example, given
from hypothesis import strategies as st

from streamer.core.errors import ShardIndexError
from streamer.core.format.index import parse_index

URI = "s3://bucket/model/model.safetensors.index.json"


def parse(document):
    text = document if isinstance(document, (bytes, str)) else json.dumps(document)
    return parse_index(text.encode() if isinstance(text, str) else text, uri=URI)


def test_an_index_as_the_hub_writes_it_is_read():
    names = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
    index = parse({"metadata": {"total_size": 8}, "weight_map": {"b": names[1], "a": names[0], "c": names[1]}})
    assert index.weight_map == {"b": names[1], "a": names[0], "c": names[1]}
    assert index.shards == tuple(names)
    assert index.metadata == {"total_size": 8}


def test_shards_come_in_natural_order():
    names = [f"model-{i}.safetensors" for i in (1, 2, 9, 10, 11, 100)]
    assert parse({"weight_map": {f"t{i}": name for i, name in enumerate(reversed(names))}}).shards == tuple(names)


def test_a_number_of_ten_thousand_digits_is_sorted_too():
    long = f"{'1' * 10_000}.safetensors"
    assert parse({"weight_map": {"a": long, "b": "2.safetensors"}}).shards == ("2.safetensors", long)


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}])
def test_metadata_may_be_absent(metadata):
    assert parse({**metadata, "weight_map": {"a": "m.safetensors"}}).metadata == {}


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(ShardIndexError, match="Save it without the byte-order mark"):
        parse(b'\xef\xbb\xbf{"weight_map": {}}')


@each_row(
    "name",
    [
        "model.safetensors",
        "sub/model-1.safetensors",
        "a/b/c.safetensors",
        "...safetensors",
        "..model.safetensors",
        "a..b/m.safetensors",
        ".safetensors",
        "with space.safetensors",
        "100%.safetensors",
        "modèle-模型.safetensors",
        "m.safetensors.safetensors",
    ],
)
def test_a_shard_may_be_named(name):
    assert parse({"weight_map": {"a": name}}).shards == (name,)


@each_row(
    "name",
    [
        "",
        "/etc/passwd.safetensors",
        "//host/share.safetensors",
        "../other.safetensors",
        "sub/../../other.safetensors",
        "sub/..",
        "..",
        ".",
        "./model.safetensors",
        "sub//model.safetensors",
        "sub/",
        "sub\\model.safetensors",
        "..\\model.safetensors",
        "\\\\host\\share.safetensors",
        "model\0.safetensors",
        "model.safetensors\0",
        "mod\nel.safetensors",
        "mod\x7fel.safetensors",
        "mod\x85el.safetensors",
        "mod\u202eel.safetensors",
        "%2e%2e/model.safetensors",
        "%2E%2E/model.safetensors",
        "sub%2f..%2fmodel.safetensors",
        "model%00.safetensors",
        "C:model.safetensors",
        "C:\\model.safetensors",
        "c:/model.safetensors",
        "https://evil.example/model.safetensors",
        "s3://other/model.safetensors",
        "file:/etc/model.safetensors",
        "file:///etc/model.safetensors",
        "simplecache::model.safetensors",
        "zip://m.safetensors::s3://b/a.zip",
        "model.bin",
        "pytorch_model.bin",
        "model.safetensors.index.json",
        "model.SAFETENSORS",
        "model.safetensors ",
        "model.safetensors?versionId=1",
        "x" * 1_000_000,
    ],
)
def test_a_shard_may_not_be_named(name):
    with pytest.raises(ShardIndexError, match="shard name") as caught:
        parse({"weight_map": {"a": "model-1.safetensors", "b": name}})
    assert caught.value.uri == URI
    assert len(str(caught.value)) < 400


@each_row("value", [None, 1, True, 1.5, ["m.safetensors"], {"m": "safetensors"}])
def test_a_shard_name_is_a_string(value):
    with pytest.raises(ShardIndexError, match="not a string, for tensor 'a'"):
        parse({"weight_map": {"a": value}})


@each_row(
    ("document", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{}x", "not JSON"),
        ("[]", "an array, not a JSON object"),
        ("null", "null, not a JSON object"),
        ('"weight_map"', "not a JSON object"),
        ("{}", "no weight_map"),
        ('{"weight_map": null}', "weight_map is null"),
        ('{"weight_map": []}', "weight_map is an array"),
        ('{"weight_map": {}}', "weight_map is empty"),
        ('{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}', "'a' occurs twice"),
        ('{"weight_map": {"b": "1.safetensors", "a": "1.safetensors", "a": "1.safetensors"}}', "'a' occurs twice"),
        (r'{"weight_map": {"a": "1.safetensors", "\u0061": "2.safetensors"}}', "'a' occurs twice"),
        ('{"weight_map": {"a": "1.safetensors"}, "weight_map": {"a": "2.safetensors"}}', "'weight_map' occurs twice"),
        ('{"metadata": {"x": NaN}, "weight_map": {"a": "1.safetensors"}}', "NaN is not a JSON number"),
        ('{"metadata": [], "weight_map": {"a": "1.safetensors"}}', "metadata is an array"),
        (r'{"weight_map": {"\ud800": "1.safetensors"}}', "lone surrogate"),
        (b'{"weight_map": {"\xff": "1.safetensors"}}', "not UTF-8"),
        (b'\xef\xbb\xbf{"weight_map": {"a": "1.safetensors"}}', "not JSON"),
        ("[" * 100_000, "nested deeper than 127"),
        ('{"metadata": {"x": %s}, "weight_map": {}}' % ("[" * 126 + "]" * 126), "nested deeper than 127"),
        ('{"metadata": %s, "weight_map": {}}' % ("1" * 5000), "the number 1{20}… has too many digits"),
    ],
)
def test_a_malformed_index_is_refused(document, reason):
    with pytest.raises(ShardIndexError, match=reason) as caught:
        parse(document)
    assert caught.value.uri == URI


@given(st.text())
@example("a/../b.safetensors")
@example("a/..\\b.safetensors")
def test_an_accepted_name_stays_in_its_folder(name):
    try:
        (shard,) = parse({"weight_map": {"a": name + ".safetensors"}}).shards
    except ShardIndexError:
        return
    assert shard == name + ".safetensors"
    assert not set(shard) & set("\\:\0\n")
    assert not {"", ".", ".."} & set(shard.split("/"))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_accepted_or_refused_with_one_error(noise, position):
    text = b'{"metadata": {"total_size": 1}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    with contextlib.suppress(ShardIndexError):
        parse(text[:position] + noise + text[position + len(noise) :])
