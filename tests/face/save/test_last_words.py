"""What a save says follows from what the storage has, whatever the last answer of an upload is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from servers.last_words import KINDS, LastWords, Word

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
