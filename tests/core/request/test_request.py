"""What a call asks for is one value: its fields are the keyword arguments of the public functions."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
from each_row import each_row
from safetensors.numpy import save_file

import streamer
from streamer import _arguments
from streamer._save.arguments import SaveOptions
from streamer.core.options import arguments
from streamer.core.request.request import Request
from streamer.plugins import registry

FIELDS = {each.name: each for each in dataclasses.fields(Request)}
FACES = (streamer.load, streamer.stream, streamer.open, streamer.load_into, streamer.aload, streamer.astream)
SECRET = "C4n4ryS3cr3tXyz"


@each_row("face", FACES)
def test_the_signature_of_a_public_function_names_every_field(face):
    parameters = inspect.signature(face).parameters
    assert parameters.keys() >= FIELDS.keys()
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in FIELDS.keys() - {"uri"}:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        if (face, name) != (streamer.load_into, "device"):
            assert parameters[name].default == FIELDS[name].default


def test_the_signature_of_a_save_names_every_option():
    options = {each.name: each.default for each in dataclasses.fields(SaveOptions)}
    for face in (streamer.save, streamer.save_model, streamer.asave):
        parameters = inspect.signature(face).parameters.values()
        assert {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY} == options


def test_a_type_checker_knows_every_field_by_its_type():
    checked = {**_arguments.LoadArguments.__annotations__, "framework": "str"}
    reported = {name: getattr(each, "__forward_arg__", each) for name, each in checked.items()}
    assert reported == {name: each.type for name, each in FIELDS.items() if name != "uri"}


def test_every_field_is_described_at_load():
    described = inspect.getdoc(streamer.load).partition("Args:")[2].partition("Returns:")[0]
    assert [name for name in FIELDS if f"\n    {name}: " not in described] == []


@each_row("face", FACES)
def test_an_argument_there_is_not_is_a_type_error_that_names_the_function(face):
    arguments = ("/absent", {}) if face is streamer.load_into else ("/absent",)
    with pytest.raises(TypeError, match=rf"^{face.__name__}\(\) got an unexpected keyword argument 'devise'$"):
        run(face, *arguments, devise=0)


def run(face, *arguments, **named):
    result = face(*arguments, **named)
    if face is streamer.aload:
        return asyncio.run(result)
    if face is streamer.astream:
        return asyncio.run(anext(result))
    return result


@pytest.mark.parametrize("again", [copy.deepcopy, lambda request: pickle.loads(pickle.dumps(request))])
def test_a_request_that_was_pickled_hides_its_secrets_as_before(again):
    request = Request(uri=f"https://u:{SECRET}@host/a", storage_options={"password": SECRET}, names=["a"])
    other = again(request)
    assert other == request
    assert SECRET not in repr(other)


def test_a_request_holds_the_text_of_paths_and_keeps_their_order(tmp_path: Path):
    uris = (each for each in (tmp_path / "b", str(tmp_path / "a")))
    assert Request(uri=uris).uris == [f"{tmp_path}/b", f"{tmp_path}/a"]
    assert Request(uri=tmp_path).uris == [str(tmp_path)]


@pytest.mark.parametrize("again", [lambda request: request, lambda request: pickle.loads(pickle.dumps(request))])
def test_a_request_does_not_follow_what_its_caller_changes_later_regression(again):
    """Only the outermost mapping was copied: an open checkpoint, and its pickle, followed changes of nested ones."""
    options = {"client_kwargs": {"headers": {"a": "b"}}, "names": [{"c": "d"}], "key": "k"}
    for given, part in ((options, lambda of: of), ([options, None], lambda of: of[0])):
        request = Request(uri=["a", "b"], storage_options=copy.deepcopy(given))
        changed = Request(uri=["a", "b"], storage_options=given)
        options["client_kwargs"]["headers"]["a"], options["names"][0]["c"] = "x", "y"
        assert part(again(changed).storage_options) == part(request.storage_options)
        options["client_kwargs"]["headers"]["a"], options["names"][0]["c"] = "b", "d"


def test_a_request_stays_as_it_is():
    request = Request(uri="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(request, "uri", "b")  # noqa: B010  a type checker refuses an assignment


def test_a_load_checks_its_uri_once(tmp_path: Path, monkeypatch):
    save_file({"a": np.ones(3)}, tmp_path / "a.safetensors")
    checked = []
    for module in (arguments, registry):
        monkeypatch.setattr(module, "check_uri", lambda uri: checked.append(str(uri)))
    streamer.load(tmp_path / "a.safetensors", framework="np", progress=False)
    assert checked == [str(tmp_path / "a.safetensors")]


def test_a_path_object_is_read_with_its_own_options_and_shows_no_secret_of_its_url():
    class Path:
        protocol, path, fs = "https", "host/a", None
        storage_options = {"password": SECRET}  # noqa: RUF012  as that of UPath

        def __str__(self):
            return f"https://u:{SECRET}@host/a"

    request = Request(uri=Path())
    assert (request.uris, request.storage_options) == ([f"https://u:{SECRET}@host/a"], {"password": SECRET})
    assert SECRET not in repr(request)
