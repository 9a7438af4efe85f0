"""A wrong argument is an error of the tree that names it and its type, before anything is asked of a storage."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import pickle
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from safetensors.torch import save_file

import streamer
from streamer._cli import main
from streamer.core.errors import UsageError
from streamer.core.options.arguments import check_destination, check_uri
from streamer.integrations.serving.weights_stream import parsed

URL = "http://127.0.0.1:9/a.safetensors"  # nobody is there, nobody is asked
OTHER = object()
WRONG: dict[str, list[Any]] = {
    "uri": [
        None,
        3,
        3.5,
        True,
        b"https://user:S3CR3T@h",
        [],
        [None],
        [3],
        [b"S3CR3T"],
        [[URL]],
        "",
        {},
        OTHER,
        iter(()),
    ],
    "names": [3, 3.5, True, b"x", [3], [None], OTHER],
    "slices": [3, True, "x", b"x", [], {"a": 3}, {3: None}, streamer.Slice, streamer.Slice(0, 0, 2), OTHER],
    "device": [3.5, [], {}, {"": 3.5}, {3: "cpu"}, True, OTHER],
    "framework": [3, [], {}, None, b"pt", "x"],
    "dtype": [3, [], {}, b"x", "x", torch.int32],
    "storage_options": [3, True, "x", b"x", ["x"], [3], [{}, {}], [[]], {3: 1}, set(), OTHER],
    "fs": [3, "s3", {}, OTHER],
    "options": [3, {}, "x", [], True, streamer.Options],
    "progress": [3, 0, "x", [], {}],
    "verify": [3, [], {}, True, "x"],
    "order": [3, [], None, "x"],
    "strict": [3, 0, None, "x"],
}
CALLS: dict[str, Any] = {
    "load": streamer.load,
    "load_into": lambda uri=URL, target=None, **named: streamer.load_into(uri, target or {}, **named),
    "stream": streamer.stream,
    "open": streamer.open,
    "load_file": lambda uri=URL, **named: streamer.load_file(uri, **named),
    "safe_open": lambda uri=URL, framework="pt", **named: streamer.safe_open(uri, framework, **named),
    "write_manifest": streamer.write_manifest,
    "save": lambda uri=URL, **named: streamer.save({}, uri, **named),
    "save_model": lambda uri=URL, **named: streamer.save_model({}, uri, **named),
    "asave": lambda uri=URL, **named: asyncio.run(streamer.asave({}, uri, **named)),
    "open_store": lambda uri=URL, **named: streamer.plugins.open_store(uri, **named),
}
TAKES = {
    **{name: [*inspect.signature(CALLS[name]).parameters] for name in ("load", "stream", "open", "write_manifest")},
    "load_into": [
        name for name in inspect.signature(streamer.load_into).parameters if name not in ("target", "device")
    ],
    "load_file": ["uri", "device", "storage_options", "options"],
    "safe_open": ["uri", "framework", "device", "storage_options", "options"],
    "open_store": ["uri", "storage_options", "fs"],
    **{name: ["uri", "storage_options", "options", "progress"] for name in ("save", "save_model", "asave")},
}
CASES = [(call, argument) for call, names in TAKES.items() for argument in names if argument in WRONG]


@pytest.fixture
def connections(monkeypatch) -> list[object]:
    made: list[object] = []

    def connect(self: socket.socket, address: object) -> None:
        made.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    return made


@pytest.mark.parametrize(("call", "argument"), CASES)
def test_a_wrong_argument_is_refused_before_the_first_request(call, argument, connections):
    for value in WRONG[argument]:
        # two mappings are wrong for one URI alone, and a store has one at a time
        if call == "open_store" and argument == "storage_options" and value == [{}, {}]:
            continue
        message = ""
        try:
            CALLS[call](**{"uri": URL, argument: value})
        except streamer.UsageError as error:
            message = str(error)
        assert message, f"{value!r} was taken"
        assert "S3CR3T" not in message
    assert connections == []


@each_row(
    ("argument", "value", "message"),
    [
        ("uri", None, "a URI is non-empty text or a path, not NoneType. Give one, or a list of them"),
        ("uri", [b"x"], "a URI is non-empty text or a path, not bytes. Give one, or a list of them"),
        ("options", {"max_attempts": 3}, "options is streamer.Options(…) or None, not dict"),
        ("storage_options", ["x"], "storage_options is a mapping of names to values, not str"),
        ("storage_options", [{}, {}], "storage_options is a list of 2, and there is 1 URI. Pass one mapping for all"),
        ("progress", 3, "progress is True, False, None or a function of (bytes done, bytes in all), not int"),
        ("names", b"x", "names must be None, strings or a callable, not bytes"),
        ("fs", "s3", "fs is a file system of fsspec, not str. Pass the result of fsspec.filesystem(…)"),
    ],
)
def test_the_message_says_what_was_expected_and_what_came(argument, value, message):
    with pytest.raises(streamer.UsageError) as caught:
        streamer.load(**{"uri": URL, argument: value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("target", [None, 3, "x", [], torch.zeros(3), torch.nn.Linear])
def test_a_value_that_is_no_target_is_refused_before_the_first_request(target, connections):
    with pytest.raises(streamer.TargetError, match=rf"not {type(target).__name__}"):
        streamer.load_into(URL, target)
    assert connections == []


def test_a_checkpoint_refuses_names_that_are_none(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    checkpoint: Any = streamer.open(tmp_path)
    for wrong in (None, 3, [], b"a"):
        for read in (checkpoint.get_tensor, checkpoint.get_slice):
            with pytest.raises(streamer.UsageError, match=rf"the name of a tensor is text, not {type(wrong).__name__}"):
                read(wrong)
    with pytest.raises(streamer.UsageError, match="not bytes"):
        checkpoint.get_tensors(b"a")
    with pytest.raises(streamer.OptionError, match="progress is"):
        checkpoint.get_tensors(progress=3)


def test_what_is_right_stays_right(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    for uri in (tmp_path, str(tmp_path), [tmp_path], (each for each in [tmp_path]), {str(tmp_path): 1}):
        assert [*streamer.load(uri, names=(name for name in "a"), storage_options=[None], progress=False)] == ["a"]


OPTIONS = [*dataclasses.fields(streamer.Options)]


@each_row("knob", OPTIONS)
def test_no_option_takes_another_type_or_no_number(knob):
    for value in ("three", float("nan"), float("inf"), [], {}, b"3", 3 + 0j, -1, 10**30, OTHER, True):
        if value is True and "low" not in knob.metadata:
            continue
        if isinstance(value, str) and "path" in knob.metadata:
            continue
        message = ""
        try:
            streamer.Options(**{knob.name: value})
        except streamer.OptionError as error:
            message = str(error)
        assert re.match(rf"{knob.name} (must be|is not)", message), (value, message)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("max_attempt", "Near: max_attempts"), ("deadline", "deadline_s"), ("zzz", "There are block_bytes")],
)
def test_an_unknown_option_is_reported_with_the_nearest_name(name, hint):
    with pytest.raises(streamer.OptionError, match=rf"there is no option '{name}'\. .*{hint}"):
        streamer.Options(**{name: 3})


def test_a_misspelled_key_of_an_engine_s_extra_config_is_reported_with_the_nearest_name_regression():
    own = ("deferred", "storage_options", "verify", "enable_weights_track")
    for name in (*own, *(each.name for each in dataclasses.fields(streamer.Options))):
        for at in range(1, len(name)):
            wrong = name[:at] + name[at + 1 :]
            if wrong == name:
                continue
            with pytest.raises(streamer.OptionError, match=rf"there is no option '{wrong}'\. Near: .*\b{name}\b"):
                parsed({wrong: None}, ("enable_weights_track",))
    with pytest.raises(streamer.OptionError, match="there is no option 'pattern'"):
        parsed({"pattern": "x"}, ("enable_weights_track",))


def test_options_are_keywords_and_immutable():
    with pytest.raises(streamer.OptionError, match="by name"):
        streamer.Options(3)  # type: ignore[misc]
    options = streamer.Options(max_attempts=3)
    assert pickle.loads(pickle.dumps(options)) == options == dataclasses.replace(options)
    assert "max_attempts" in inspect.signature(streamer.Options).parameters


@each_row(
    "uri",
    [
        *("s3 ://b/m", "\ufeffs3://b/m", "\u200bs3://b/m", "url=s3://b/m", "%s3://b/m", "simplecache:s3://b/m"),
        *("s3: //b/m", "s3//b/m", "https//u:p@h/m", "az//c/m", "s3:\\b\\m", "hTTp ://u:p@h", "s3:/b/m", " s3://b/m"),
    ],
)
def test_a_damaged_url_is_no_path_regression(uri: str) -> None:
    with pytest.raises(UsageError, match="The URI is a damaged URL"):
        check_uri(uri)


NO_PATHS = ["s3:b/m", "S3:b/m", "hf:o/n", "gs:b", "${X}/m", "${X", "$X/m", "$X", "None", "None/m"]


@each_row("verb", ["save", "push", "pull", "copy"])
@each_row("uri", NO_PATHS)
def test_nothing_is_written_to_what_is_no_path_regression(
    verb: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local folder of this name was made, with success."""
    source = tmp_path / "source"
    if not source.exists():
        streamer.save({"a": np.zeros(2)}, source)
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    if verb == "save":
        with pytest.raises(UsageError, match="The URI "):
            streamer.save({"a": np.zeros(2)}, uri)
    else:
        result = CliRunner().invoke(main, [verb, str(source), uri])
        assert result.exit_code != 0
        assert "The URI " in result.output
    assert [*(tmp_path / "here").iterdir()] == []


@each_row("uri", NO_PATHS)
def test_a_file_of_such_a_name_is_read_and_written(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(uri).mkdir(parents=True, exist_ok=True)
    streamer.save({"a": np.ones(2)}, uri, overwrite=True)
    assert streamer.load(uri, framework="np")["a"].sum() == 2
    check_destination(f"./{uri}-new")


@each_row(
    "uri",
    [
        *("hf::x", "Nonesuch/x", "models/None", "models/$X", "a$X", "./s3:b", "/data/${X}", "$1", "s3_b:x", "as3:b"),
        *("s3://b/m", "file:/tmp/x", "local:///x", "memory://x", "a:b", "https://h/m"),
    ],
)
def test_other_texts_are_destinations(uri: str) -> None:
    check_destination(uri)


@each_row(
    "uri",
    [
        *("s3://b/m", "zip://a.zip::s3://b/m", "simplecache::s3://b/m", "/data/a b://c", "./x y://z", "~/x =://"),
        *("m odel/x", "github://o:r@main/x", "streamer::s3://b/x", "http://h/p?x=y://z", "my_scheme://x", "models/s3"),
        *("abfs://c@a.dfs.core.windows.net/x", "s3://bucket/with space://x", "file:/tmp/x", "local:///x"),
    ],
)
def test_other_texts_are_urls_or_paths(uri: str) -> None:
    check_uri(uri)
