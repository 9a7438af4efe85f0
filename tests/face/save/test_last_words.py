"""What a save says follows from what the storage has, whatever the last answer of an upload is."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from latin_rows import latin_rows
from servers.last_word_answers import Stored, Upload, Word
from servers.last_words import KINDS, LastWords
from servers.writable import Sent, writable

import streamer
from streamer.core.store import own_objects

ANSWERS: tuple[str | int, ...] = ("usual", "empty", "braces", "page", "error", 201, 403, 404, 409, 412, 500, 503)
STORED = ("all", "half", "nothing", "another", "unmarked", "late")
LARGE = 3 << 18  # numbers of a tensor of 3 MiB, which is sent in parts


@pytest.fixture(scope="module")
def server() -> Iterator[LastWords]:
    with LastWords() as words:
        yield words


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_objects, "PAUSES_S", (0.001,) * 4)


def tensors(value: float, size: int = 50) -> dict[str, torch.Tensor]:
    return {name: torch.full((size,), value + at) for at, name in enumerate("ab")}


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def loaded(uri: str, options: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    try:
        return streamer.load(uri, storage_options=options, progress=False)
    except streamer.StreamerError:
        return None


def check_save(server: LastWords, kind: str, word: Word, size: int, *, replaces: bool) -> None:
    """Save with a last word, and compare what is said with what is there."""
    server.objects.clear()
    server.blocks.clear()
    uri, options = server.place(kind, "m")
    how: dict[str, Any] = {"storage_options": options, "progress": False, "overwrite": replaces}
    how |= {"max_shard_bytes": size * 4, "options": streamer.Options(block_deadline_s=5)}
    if replaces:
        streamer.save(tensors(1.0, size), uri, **how)
    before = dict(server.objects)
    server.word = word
    try:
        streamer.save(tensors(5.0, size), uri, **how)
    except streamer.StreamerError as error:
        text = str(error)
    else:
        text = ""
    assert server.word is None, "the last request was not sent"
    for each in server.objects.values():
        each.hidden_looks = 0
    got = loaded(uri, options)
    if not text:
        assert got is not None
        assert is_equal(got, tensors(5.0, size))
        return
    if replaces:
        assert got is not None
        assert is_equal(got, tensors(1.0, size))
    assert word.stored not in ("all", "late") or kind == "http", text
    left = [name for name in server.objects if name not in before]
    if kind == "http":
        return
    is_told = word.answer not in (403, 404)  # then the answer itself is the cause
    assert "another program has" not in text or word.stored == "another", text
    assert "another program has" in text or word.stored != "another" or not is_told, text
    assert all(name.rpartition("/")[2] in text or word.stored == "another" for name in left), (text, left)
    if word.stored == "unmarked" and is_told:
        assert "metadata" in text, text
    if word.stored == "half":
        assert "bytes" in text


@given(
    kind=st.sampled_from(KINDS),
    stored=st.sampled_from(STORED),
    answer=st.sampled_from(ANSWERS),
    has_version=st.booleans(),
    size=st.sampled_from([50, LARGE]),
    replaces=st.booleans(),
)
@settings(max_examples=60)
@pytest.mark.usefixtures("short_pauses")
def test_a_save_succeeds_exactly_if_the_whole_object_is_there_and_ours(
    server: LastWords, kind: str, stored: str, answer: str | int, has_version: bool, size: int, replaces: bool
) -> None:
    word = Word("00001-of-00002.safetensors", stored, answer, has_version)
    check_save(server, kind, word, size, replaces=replaces)


@pytest.fixture
def fresh(server: LastWords) -> Iterator[LastWords]:
    """Forget what earlier tests have left."""
    for each in (server.objects, server.uploads, server.blocks):
        each.clear()
    yield server
    server.cut, server.before_last, server.odd_looks = "", None, None


@pytest.mark.parametrize("kind", ["s3", "az"])
@pytest.mark.parametrize("size", [50, LARGE])
def test_half_a_part_does_not_replace_an_older_file_regression(kind: str, size: int, fresh: LastWords) -> None:
    uri, options = fresh.place(kind, "m.safetensors")
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    streamer.save(tensors(1.0, size), uri, **how)
    fresh.cut = "m.safetensors"
    with pytest.raises(streamer.StorageError, match=r"of the \d+ bytes of"):
        streamer.save(tensors(5.0, size), uri, overwrite=True, **how)
    got = loaded(uri, options)
    assert got is not None
    assert is_equal(got, tensors(1.0, size))


@pytest.mark.parametrize("kind", ["s3", "az"])
def test_half_a_part_of_a_new_file_is_an_error_and_leaves_nothing_regression(kind: str, fresh: LastWords) -> None:
    uri, options = fresh.place(kind, "m.safetensors")
    fresh.cut = "m.safetensors"
    with pytest.raises(streamer.StorageError, match=r"the storage has \d+ of the \d+ bytes that were sent"):
        streamer.save(tensors(5.0, LARGE), uri, storage_options=options, progress=False)
    assert fresh.objects == {}


@pytest.mark.parametrize("first_part", [b"o" * 10, b"o" * (5 << 20)])
def test_the_multipart_upload_of_another_tool_is_left_alone_regression(first_part: bytes, fresh: LastWords) -> None:
    uri, options = fresh.place("s3", "m.safetensors")
    fresh.uploads["theirs"] = Upload("box/m.safetensors", {}, None, {1: first_part})
    streamer.save(tensors(5.0, LARGE), uri, storage_options=options, progress=False, resume=True)
    assert fresh.uploads == {"theirs": Upload("box/m.safetensors", {}, None, {1: first_part})}
    got = loaded(uri, options)
    assert got is not None
    assert is_equal(got, tensors(5.0, LARGE))


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("size", [50, LARGE])
@pytest.mark.parametrize("block_id", [b"00000", b"1234567", b"\xff" * 9, b"0" * 36, b"b" * 64])
def test_blocks_that_another_tool_has_left_do_not_end_a_save_regression(
    block_id: bytes, size: int, resume: bool, fresh: LastWords
) -> None:
    uri, options = fresh.place("az", "m.safetensors")
    fresh.blocks["box/m.safetensors"] = {base64.b64encode(block_id).decode(): b"x" * 100}
    streamer.save(tensors(5.0, size), uri, storage_options=options, progress=False, resume=resume)
    got = loaded(uri, options)
    assert got is not None
    assert is_equal(got, tensors(5.0, size))


def test_blocks_with_ids_that_are_too_short_are_named(fresh: LastWords) -> None:
    uri, options = fresh.place("az", "m.safetensors")
    fresh.blocks["box/m.safetensors"] = {base64.b64encode(b"1").decode(): b"x" * 100}
    with pytest.raises(streamer.StorageError, match=r"uncommitted blocks of another upload.*in one request"):
        streamer.save(tensors(5.0, LARGE), uri, storage_options=options, progress=False)


def test_blocks_of_a_failed_save_are_as_long_as_those_of_azures_own_client(fresh: LastWords) -> None:
    uri, options = fresh.place("az", "m.safetensors")
    fresh.word = Word("m.safetensors", "nothing", 403)
    fresh.blocks["box/m.safetensors"] = {base64.b64encode(b"0" * 48).decode(): b"of Azure's client"}
    with pytest.raises(streamer.AccessDeniedError):
        streamer.save(tensors(5.0, LARGE), uri, storage_options=options, progress=False)


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_no_manifest_is_left_beside_a_file_that_another_program_wrote_regression(kind: str, fresh: LastWords) -> None:
    uri, options = fresh.place(kind, "m")
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    streamer.save(tensors(1.0), uri, **how)
    name = next(each for each in fresh.objects if each.endswith("m/model.safetensors"))
    theirs = Stored(fresh.objects[name].data, {}, "7")
    fresh.before_last = ("manifest", lambda: fresh.objects.update({name: theirs}))
    with pytest.raises(streamer.ChangedError, match="another program"):
        streamer.save(tensors(5.0), uri, overwrite=True, **how)
    assert [*fresh.objects] == [name]


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_the_writer_of_the_last_file_writes_the_last_manifest_regression(kind: str, fresh: LastWords) -> None:
    uri, options = fresh.place(kind, "m")
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    streamer.save(tensors(1.0), uri, **how)
    manifest = next(each for each in fresh.objects if each.endswith("manifest.json"))
    theirs = Stored(b"{}", {}, "7")
    fresh.before_last = ("model.safetensors", lambda: fresh.objects.update({manifest: theirs}))
    streamer.save(tensors(5.0), uri, overwrite=True, **how)
    assert is_equal(streamer.load(uri, storage_options=options, verify="manifest"), tensors(5.0))


def test_a_manifest_that_the_storage_does_not_keep_is_an_error_regression(fresh: LastWords) -> None:
    uri, options = fresh.place("s3", "m")
    streamer.save(tensors(1.0), uri, storage_options=options, progress=False, digests=False)
    fresh.word = Word("manifest", "nothing", "page")
    with pytest.raises(streamer.StorageError, match="has no object"):
        streamer.write_manifest(uri, storage_options=options)


@given(
    kind=st.sampled_from(KINDS),
    shards=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    status=st.sampled_from([200, 204, 308, 400, 403, 404, 409, 412]),
    times=st.sampled_from([1, 2, 1000]),
    written=st.sampled_from(["last", "shard"]),
)
@settings(max_examples=16)
@pytest.mark.usefixtures("short_pauses")
def test_odd_answers_to_looks_leave_the_older_or_the_newer_checkpoint_regression(
    server: LastWords, kind: str, shards: tuple[int, int], status: int, times: int, written: str
) -> None:
    for each in (server.objects, server.uploads, server.blocks):
        each.clear()
    uri, options = server.place(kind, "m")
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    sizes = [{"max_shard_bytes": 200} if count == 2 else {} for count in shards]
    streamer.save(tensors(1.0), uri, **how, **sizes[0])
    last = "model.safetensors.index.json" if 2 in shards else "model.safetensors"
    name = last if written == "last" or shards[1] == 1 else "00001-of-00002.safetensors"
    server.before_last = name, lambda: setattr(server, "odd_looks", (name, status, times))
    text = ""
    try:
        streamer.save(tensors(5.0), uri, overwrite=True, **how, **sizes[1])
    except streamer.StreamerError as error:
        text = str(error)
    server.odd_looks = server.before_last = None
    got = loaded(uri, options)
    assert got is not None, (text, sorted(server.objects))
    is_new = is_equal(got, tensors(5.0))
    assert is_new or is_equal(got, tensors(1.0))
    assert text or is_new
    if kind != "http" or status not in (200, 404):  # these are answers about the file
        assert not is_new or "not saved" not in text, text


@pytest.mark.parametrize(
    ("answer", "seen", "kind"),
    latin_rows(
        ["empty", "braces", "page", "error", 204, 400, 404, 412],
        ["shard", "manifest", "index", "shard again", "manifest again"],
        KINDS,
    ),
)
def test_one_odd_answer_to_a_look_does_no_harm_regression(
    kind: str, seen: str, answer: str | int, fresh: LastWords
) -> None:
    uri, options = fresh.place(kind, "m")
    name = {"shard": "00001-of-00002", "manifest": "manifest", "index": "index"}[seen.partition(" ")[0]]
    # A file that was seen is looked at again when all files are there, right before the index.
    written = name if " " not in seen else "manifest"
    fresh.before_last = written, lambda: setattr(fresh, "odd_looks", (name, answer, 1))
    streamer.save(tensors(5.0), uri, max_shard_bytes=200, storage_options=options, progress=False)
    assert fresh.odd_looks is not None
    assert fresh.odd_looks[2] == 0
    assert is_equal(streamer.load(uri, storage_options=options, verify="manifest"), tensors(5.0))


@pytest.mark.parametrize("answer", ["empty", "braces", "page", "error"])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_answers_to_all_looks_name_no_other_program_regression(kind: str, answer: str, fresh: LastWords) -> None:
    uri, options = fresh.place(kind, "m")
    fresh.before_last = "manifest", lambda: setattr(fresh, "odd_looks", ("00001-of-00002", answer, 1000))
    with pytest.raises(streamer.StorageError) as caught:
        streamer.save(tensors(5.0), uri, max_shard_bytes=200, storage_options=options, progress=False)
    assert kind == "http" or "another program" not in str(caught.value)


@pytest.mark.parametrize("answer", ["page", "empty", 201])
@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_that_keeps_the_older_manifest_is_an_error_regression(
    kind: str, answer: str | int, fresh: LastWords
) -> None:
    uri, options = fresh.place(kind, "m")
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    streamer.save(tensors(1.0), uri, **how)
    fresh.word = Word("manifest", "nothing", answer)
    with pytest.raises(streamer.StorageError, match="the checkpoint is saved, but its manifest is not"):
        streamer.save(tensors(5.0), uri, overwrite=True, **how)
    got = loaded(uri, options)
    assert got is not None
    assert is_equal(got, tensors(5.0))
    with pytest.raises(streamer.ObjectNotFoundError, match="no manifest"):
        streamer.load(uri, verify="manifest", **how)


@pytest.mark.parametrize("answer", ["page", "empty", 201])
def test_a_web_server_that_keeps_the_older_file_is_an_error_regression(answer: str | int, fresh: LastWords) -> None:
    uri, options = fresh.place("http", "m")
    streamer.save(tensors(1.0), uri, storage_options=options, progress=False)
    fresh.word = Word("model.safetensors", "nothing", answer)
    with pytest.raises(streamer.StorageError, match="has not replaced the older object"):
        streamer.save(tensors(5.0), uri, overwrite=True, storage_options=options, progress=False)
    got = loaded(uri, options)
    assert got is not None
    assert is_equal(got, tensors(1.0))


@pytest.mark.parametrize("answer", ["empty", "braces", "page", "error"])
def test_an_odd_answer_to_the_first_look_is_not_blamed_on_the_key_regression(answer: str, fresh: LastWords) -> None:
    uri, options = fresh.place("az", "m.safetensors")
    how: dict[str, Any] = {"storage_options": options, "progress": False}
    streamer.save(tensors(1.0), uri, **how)
    fresh.odd_looks = "m.safetensors", answer, 1
    with pytest.raises(streamer.StorageError, match="Azure's answer is malformed"):
        streamer.save(tensors(5.0), uri, overwrite=True, **how)
    assert is_equal(streamer.load(uri, verify="manifest", **how), tensors(1.0))


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_a_file_of_another_program_is_called_that_and_stays_regression(kind: str) -> None:
    with writable(kind) as storage:
        other = b"of another program", {"ETag": '"other"', "x-ms-blob-type": "BlockBlob"}

        def write_first(sent: Sent) -> None:
            if sent.method == "PUT" and sent.name.endswith("/model.safetensors"):
                storage.objects.setdefault(sent.name, other)

        storage.script = write_first
        with pytest.raises(streamer.ChangedError, match="another program has written it") as raised:
            streamer.save(
                {"a": torch.ones(300)},
                storage.uri("m"),
                storage_options=storage.options(),
                digests=False,
                progress=False,
            )
        assert "not known" not in str(raised.value)
        assert [data for data, _ in storage.objects.values()] == [other[0]]
