"""What a plug-in raises, or returns by mistake, is an error that names it; what it does right goes on working."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import logging
import os
import shutil
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin_distributions import install_plugin
from safetensors.numpy import save
from servers.background import begun

import streamer
from streamer import plugins
from streamer.core.conditions import Event
from streamer.core.options.limits import Limits
from streamer.plugins import (
    FileSource,
    HttpSource,
    NoDigest,
    ObjectDigest,
    ObjectInfo,
    PartDigest,
    PythonSource,
)

HOOK = """
from streamer.plugins import hookimpl
OPEN = None
@hookimpl
def streamer_open_store(uri, storage_options):
    return OPEN()
"""
WEIGHTS = {"a": np.arange(1000.0), "b": np.arange(7.0)}
SHARD = save(WEIGHTS)
PASSWORD = "CANARY" * 2
BLAME = r"acme-store 1\.5"


class Shelf:
    """A store that does everything right; tests replace one of its methods."""

    root = "folder"

    def __init__(self) -> None:
        self.objects = {"folder/model.safetensors": SHARD}

    def info(self, path: str) -> Any:
        if path not in self.objects:
            raise streamer.ObjectNotFoundError("no such object", uri=f"acme://{path}")
        return ObjectInfo(path, f"acme://{path}", len(self.objects[path]), "1")

    def find(self, prefix: str) -> Any:
        return [self.info(path) for path in self.objects if path.rpartition("/")[0] == prefix]

    def source(self, info: ObjectInfo) -> Any:
        return PythonSource(lambda buffer, offset: fill(buffer, self.objects[info.path], offset))

    def close(self) -> Any:
        return None


def fill(buffer: memoryview, data: bytes, offset: int) -> int:
    buffer[:] = data[offset : offset + len(buffer)]
    return len(buffer)


class PanicError(BaseException):
    """As pyo3 raises where Rust panics."""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    install_plugin(tmp_path, monkeypatch, "acme-store", HOOK, "acme")
    __import__("acme_store_module")
    made = Shelf()
    monkeypatch.setattr(sys.modules["acme_store_module"], "OPEN", lambda: made)
    return made


@pytest.fixture
def release() -> Iterator[Event]:
    """What hanging functions wait for: set at the end, so that no thread is left."""
    event = Event()
    yield event
    event.set()


def load(**named: Any) -> Any:
    return streamer.load("acme://folder", framework="np", progress=False, **named)


def raiser(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it


def returns(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def blamed(method: str, **named: Any) -> streamer.PluginError:
    """Load, and check that the error names the plug-in everywhere."""
    with pytest.raises(streamer.PluginError, match=BLAME) as caught:
        load(**named)
    error = caught.value
    assert (error.scheme, error.distribution, error.version, error.method) == ("acme", "acme-store", "1.5", method)
    assert method in str(error)
    "".join(traceback.format_exception(error))
    return error


def test_a_right_store_loads(shelf: Shelf) -> None:
    assert all((load()[name] == WEIGHTS[name]).all() for name in WEIGHTS)


def test_python_3_12_sees_which_optional_methods_a_store_has_regression(shelf: Any) -> None:
    names = ("identity", "peek", "resume_upload", "digest")
    for name in names:
        setattr(shelf, name, returns(""))
    store = plugins.open_store("acme://folder")
    assert all(inspect.getattr_static(store, name) for name in names)  # so `isinstance` asks there


@pytest.mark.parametrize(
    ("method", "error"),
    [
        *((method, ValueError("a wrong value")) for method in ("find", "info", "source", "digest", "confirm")),
        ("streamer_open_store", FileNotFoundError("a file of its own")),
        *itertools.product(
            ("find", "read_into"), (PanicError("!"), SystemExit(3), asyncio.CancelledError(), StopIteration())
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_whatever_is_raised_names_the_plugin_and_is_its_cause(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
) -> None:
    break_method(shelf, monkeypatch, method, raiser(error))
    raised = blamed(method, verify="auto")
    assert raised.__cause__ is error
    assert type(error).__name__ in str(raised)


@pytest.mark.parametrize("method", ["streamer_open_store", "find", "source", "read_into"])
def test_an_interrupt_of_the_user_ends_a_call_that_hangs(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, release: Event, method: str
) -> None:
    asked = Event()

    def hang(*_: object) -> None:
        asked.set()
        while not release.wait(0.01):  # a signal that comes just before a wait does not end the wait
            pass

    break_method(shelf, monkeypatch, method, hang)

    def interrupt() -> None:
        asked.wait()
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where run in the background
    try:
        with pytest.raises(KeyboardInterrupt), begun(threading.Thread(target=interrupt)):
            load()
    finally:
        signal.signal(signal.SIGINT, previous)


def break_method(shelf: Any, monkeypatch: pytest.MonkeyPatch, method: str, function: Callable[..., Any]) -> None:
    if method in ("read_into", "confirm"):
        right = shelf.source
        shelf.source = lambda info: replace(right(info), **{method: function})
    elif method == "streamer_open_store":
        monkeypatch.setattr(sys.modules["acme_store_module"], "OPEN", function)
    else:
        setattr(shelf, method, function)
        if method == "info":  # asked for what a listing has no size of
            shelf.find = lambda prefix: [ObjectInfo("folder/model.safetensors", "acme://x", None)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(2, "gone"), streamer.ObjectNotFoundError),
        (PermissionError(13, "no"), streamer.AccessDeniedError),
        (ConnectionResetError(104, "reset"), streamer.ConnectError),
        (TimeoutError("late"), streamer.TransferTimeoutError),
        (OSError(110, "timed out"), streamer.TransferTimeoutError),
        (OSError(113, "no route"), streamer.ConnectError),
        (MemoryError(), streamer.OutOfMemoryError),
        (streamer.ChangedError("another one"), streamer.ChangedError),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
@pytest.mark.parametrize("method", ["source", "read_into"])
def test_what_has_a_plain_meaning_keeps_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, expected: type[Exception]
) -> None:
    break_method(shelf, monkeypatch, method, raiser(error))
    with pytest.raises(expected) as caught:
        load(options=streamer.Options(max_attempts=1, block_deadline_s=0.1))
    if not isinstance(error, streamer.StreamerError):
        assert f"{method} of acme-store 1.5" in str(caught.value)
        assert caught.value.__cause__ is error


def test_a_status_of_an_overloaded_server_is_tried_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    class BusyError(Exception):
        status = 503

    failures = iter([BusyError(), BusyError()])
    right = shelf.source

    def read_into(buffer: memoryview, offset: int) -> int:
        if (error := next(failures, None)) is not None:
            raise error
        return fill(buffer, SHARD, offset)

    monkeypatch.setattr(shelf, "source", lambda info: replace(right(info), read_into=read_into))
    assert list(load()) == ["a", "b"]
    assert next(failures, None) is None


def infos(*paths: str) -> list[ObjectInfo]:
    return [ObjectInfo(path, f"acme://{path}", len(SHARD), "1") for path in paths]


@pytest.mark.parametrize(
    ("method", "value", "told"),
    [
        ("find", None, "returned None, not a list"),
        ("find", "folder", "returned str"),
        ("find", ["folder/model.safetensors"], "returned str, not ObjectInfo"),
        ("find", [None], "returned None, not ObjectInfo"),
        ("find", infos("elsewhere/model.safetensors"), "not in the folder"),
        ("find", infos("folder2/model.safetensors"), "not in the folder"),
        ("find", infos("folder/../model.safetensors"), "leads out of the folder"),
        ("find", infos("folder/m.safetensors", "folder/m.safetensors"), "twice"),
        ("find", [ObjectInfo("folder/m.safetensors", "x", 1.5)], "float as size_bytes"),  # type: ignore[arg-type]
        ("find", [ObjectInfo("folder/m.safetensors", "x", -1)], "-1 as size_bytes"),
        ("find", [ObjectInfo("folder/m.safetensors", "x", True)], "bool as size_bytes"),
        ("find", [ObjectInfo("folder/m.safetensors", "x", 1 << 63)], "as size_bytes"),
        ("find", [ObjectInfo("folder/m.safetensors", None, 1)], "None as uri"),  # type: ignore[arg-type]
        ("find", [ObjectInfo("folder/m.safetensors", "x", 1, b"1")], "bytes as version"),  # type: ignore[arg-type]
        ("find", [ObjectInfo("folder/m.safetensors", "x", 1, ["1"])], "list as version"),  # type: ignore[arg-type]
        ("find", [ObjectInfo("", "x", 1)], "empty path"),
        ("info", None, "returned None, not ObjectInfo"),
        ("info", {"size": 1}, "returned dict"),
        ("source", None, "returned None, not HttpSource or FileSource or NfsSource or PythonSource"),
        ("source", "/etc/passwd", "returned str"),
        ("source", FileSource("model.safetensors"), "relative"),
        ("source", FileSource("/a\0b"), "NUL"),
        ("source", FileSource(7), "int as path"),  # type: ignore[arg-type]
        ("source", PythonSource(None), "None as read_into"),  # type: ignore[arg-type]
        ("source", PythonSource(len, max_threads=-1), "-1 as max_threads"),  # type: ignore[arg-type]
        ("source", PythonSource(len, max_threads="4"), "str as max_threads"),  # type: ignore[arg-type]
        ("source", PythonSource(len, confirm=7), "int as confirm"),  # type: ignore[arg-type]
        ("source", PythonSource(len, timeout_s=0), "timeout_s"),  # type: ignore[arg-type]
        ("digest", None, "returned None, not ObjectDigest or NoDigest"),
        ("digest", ObjectDigest("md5", ("abc",)), "returned str, not PartDigest"),  # type: ignore[arg-type]
        ("digest", ObjectDigest("md5", 7), "int as parts"),  # type: ignore[arg-type]
        ("digest", ObjectDigest("md5", (PartDigest("9", "ab"),)), "str as end"),  # type: ignore[arg-type]
        ("digest", NoDigest(None), "None as reason"),  # type: ignore[arg-type]
        ("read_into", None, "None as the count of bytes"),
        ("read_into", 7.0, "float as the count of bytes"),
        ("read_into", -1, "-1 as the count of bytes"),
        ("read_into", 1 << 62, "as the count of bytes"),
        ("streamer_open_store", 7, "lacks info, find, source, close, root"),
        ("streamer_open_store", Shelf, "raised TypeError"),
    ],
)
def test_whatever_is_returned_names_the_plugin(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, method: str, value: Any, told: str
) -> None:
    break_method(shelf, monkeypatch, method, returns(value))
    if value is Shelf:  # its methods are functions that lack `self`
        with pytest.raises(streamer.PluginError, match=BLAME):
            load()
        return
    assert told in str(blamed(method, verify="auto"))


@pytest.mark.parametrize("name", ["close", "root"])
def test_a_store_that_lacks_something_is_told_what(shelf: Shelf, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {each: getattr(shelf, each) for each in ("info", "find", "source", "close", "root") if each != name}
    monkeypatch.setattr(sys.modules["acme_store_module"], "OPEN", type("Half", (), parts))
    assert f"returned Half, which lacks {name}." in str(blamed("streamer_open_store"))


def test_the_description_of_another_object_is_refused(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    described = shelf.info("folder/model.safetensors")
    monkeypatch.setattr(shelf, "info", lambda path: described)
    monkeypatch.setattr(shelf, "root", "folder/other.safetensors", raising=False)
    assert "described folder/model.safetensors when asked for folder/other.safetensors" in str(blamed("info"))


def test_objects_of_sub_folders_are_no_shards_of_the_folder(shelf: Shelf) -> None:
    shelf.objects["folder/old/model-2.safetensors"] = save({"c": np.arange(3.0)})
    shelf.find = lambda prefix: [shelf.info(path) for path in shelf.objects]  # type: ignore[method-assign]
    assert list(load()) == ["a", "b"]


def test_a_listing_without_an_end_is_an_error(shelf: Shelf) -> None:
    shelf.find = lambda prefix: (infos(f"folder/{i}.bin")[0] for i in itertools.count())  # type: ignore[method-assign]
    with pytest.raises(streamer.StorageError, match="more than 500 entries"):
        load(options=streamer.Options(listing_entries=500))


def test_a_listing_may_be_a_generator_and_have_no_sizes(shelf: Shelf) -> None:
    shelf.find = lambda prefix: iter([replace(*infos("folder/model.safetensors"), size_bytes=None)])  # type: ignore
    assert list(load()) == ["a", "b"]


@pytest.mark.parametrize("name", ["\udcff", "\x1b"], ids=ascii)
def test_names_need_not_be_of_utf_8(shelf: Shelf, name: str) -> None:
    shelf.objects = {f"folder/{name}.safetensors": SHARD}
    assert list(load()) == ["a", "b"]


def test_sizes_may_be_of_numpy(shelf: Shelf) -> None:
    listed = replace(*infos("folder/model.safetensors"), size_bytes=np.int64(len(SHARD)))
    shelf.find = lambda prefix: [listed]  # type: ignore[method-assign]
    assert list(load()) == ["a", "b"]


@pytest.mark.parametrize("method", ["read_into", "confirm"])
def test_a_read_that_never_returns_ends_in_time(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, release: Event, method: str
) -> None:
    break_method(shelf, monkeypatch, method, lambda *_: release.wait())
    with pytest.raises(streamer.TransferTimeoutError, match=rf"of {BLAME} did not return within 0.2 s"):
        load(options=streamer.Options(block_deadline_s=0.2))


@pytest.mark.parametrize("method", ["streamer_open_store", "find", "info", "source", "digest"])
def test_a_load_with_a_deadline_ends_whatever_hangs(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, release: Event, method: str
) -> None:
    break_method(shelf, monkeypatch, method, lambda *_: release.wait())
    with pytest.raises(streamer.TransferTimeoutError):
        load(options=streamer.Options(deadline_s=0.2), verify="auto")


def test_a_source_may_have_more_time(shelf: Shelf, release: Event) -> None:
    right = shelf.source

    def read_into(buffer: memoryview, offset: int) -> int:
        release.wait(0.5)
        return fill(buffer, SHARD, offset)

    shelf.source = lambda info: replace(right(info), read_into=read_into, timeout_s=60.0)  # type: ignore
    assert list(load(options=streamer.Options(block_deadline_s=0.2))) == ["a", "b"]


@pytest.mark.parametrize("error", [ValueError("torn"), SystemExit(1), streamer.StorageError("torn")], ids=repr)
def test_a_store_that_cannot_be_closed_loses_no_load(
    shelf: Shelf, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    shelf.close = raiser(error)  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "streamer"):
        assert list(load()) == ["a", "b"]
    assert "a store could not be closed" in caplog.text
    assert "torn" in caplog.text or "SystemExit" in caplog.text
    with pytest.raises(streamer.StreamerError):
        plugins.open_store("acme://folder").close()


def test_a_store_that_cannot_be_closed_hides_no_earlier_error(shelf: Shelf) -> None:
    shelf.close, shelf.find = raiser(ValueError("torn")), raiser(KeyError("first"))  # type: ignore[method-assign]
    assert "KeyError" in str(blamed("find"))


class Downloading(Shelf):
    """Downloads into a folder of its own, which ends with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir()
        (folder / "m").write_bytes(SHARD)
        self.folder = folder
        weakref.finalize(self, shutil.rmtree, folder)

    def source(self, info: ObjectInfo) -> FileSource:
        return FileSource(f"{self.folder}/m")


def test_a_store_lives_as_long_as_its_sources(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["acme_store_module"], "OPEN", lambda: Downloading(tmp_path / "downloads"))
    with streamer.open("acme://folder", framework="np") as checkpoint:
        gc.collect()
        assert list(checkpoint.get_tensors()) == ["a", "b"]
    del checkpoint
    gc.collect()
    assert not (tmp_path / "downloads").exists()


def test_a_buffer_that_is_kept_names_the_plugin(shelf: Shelf) -> None:
    kept = []
    right = shelf.source
    shelf.source = lambda info: replace(right(info), read_into=lambda *each: kept.append(each[0][:1]) or len(each[0]))  # type: ignore
    with pytest.raises(streamer.PluginError, match=rf"read_into of {BLAME} keeps a reference"):
        load()
    kept.clear()


def test_a_password_of_the_url_is_in_no_error(shelf: Shelf) -> None:
    uri = f"acme://me:{PASSWORD}@host/folder"
    shelf.find = raiser(ValueError(uri))  # type: ignore[method-assign]
    with pytest.raises(streamer.PluginError) as caught:
        streamer.load(uri)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_secret_option_is_in_no_error_of_an_open_store(shelf: Shelf) -> None:
    shelf.find = raiser(ValueError(f"wrong token: {PASSWORD}"))  # type: ignore[method-assign]
    store = plugins.open_store("acme://folder", {"token": PASSWORD})
    with pytest.raises(streamer.PluginError, match="wrong token") as caught:
        store.find("folder")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


# --- what is sent -----------------------------------------------------------------------------------------------------

URL = "http://127.0.0.1:1/model"
CHECKSUM = plugins.AnswerChecksum(("x-want", "true"), "x-crc", "crc64nvme", "little", 1 << 20)


@pytest.mark.parametrize("letter", ["\r", "\n", "\r\n", "\0"])
def test_a_line_end_in_a_header_is_refused_when_the_source_is_made_regression(letter: str) -> None:
    with pytest.raises(ValueError, match="'Authorization' of an HttpSource holds a CR, LF or NUL") as caught:
        HttpSource(URL, {"X": "a", "Authorization": f"Bearer S3CR3T{letter}X-Evil: 1"})
    assert "S3CR3T" not in str(caught.value)
    with pytest.raises(ValueError, match="holds a CR, LF or NUL"):
        HttpSource(URL, {f"X{letter}Evil": "a"})
    for named in ({"url": f"{URL}{letter}"}, {"url": URL, "version": letter}, {"url": URL, "proxy": letter}):
        with pytest.raises(ValueError, match="holds a CR, LF or NUL"):
            HttpSource(**named)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (HttpSource(URL, {"X-Token": b"a"}), "dict as headers, which must be Mapping[str, str]"),  # type: ignore[dict-item]
        (HttpSource(URL, [("X", "a")]), "list as headers"),  # type: ignore[arg-type]
        (HttpSource(URL, {"RANGE": "bytes=0-"}), "a header 'range', which the engine sets itself"),
        (HttpSource(URL, version=7), "int as version"),  # type: ignore[arg-type]
        (HttpSource(f"{URL}?a b"), "spaces that are not quoted"),
        (HttpSource("file:///etc/passwd"), "not http:// or https://"),
        (HttpSource(b"http://host/a"), "bytes as url"),  # type: ignore[arg-type]
        (HttpSource(URL, expires_at_s="soon"), "str as expires_at_s"),  # type: ignore[arg-type]
        (HttpSource(URL, refresh=7), "int as refresh"),  # type: ignore[arg-type]
        (HttpSource(URL, ca_file=7), "int as ca_file"),  # type: ignore[arg-type]
        (HttpSource(URL, answer_checksum=7), "int as answer_checksum"),  # type: ignore[arg-type]
        (HttpSource(URL, answer_checksum=replace(CHECKSUM, algorithm="md4")), "str as algorithm"),  # type: ignore[arg-type]
        (HttpSource(URL, answer_checksum=replace(CHECKSUM, max_bytes=0)), "0 as max_bytes"),
    ],
)
def test_a_wrong_part_of_a_source_is_named(shelf: Shelf, source: HttpSource, told: str) -> None:
    shelf.source = returns(source)  # type: ignore[method-assign]
    assert told in str(blamed("source"))


def test_what_is_refreshed_is_checked_too(shelf: Shelf) -> None:
    first = HttpSource(URL, {"X-Token": "right"}, '"1"', answer_checksum=CHECKSUM, ca_file=Path("/ca"))  # type: ignore
    answers: Iterator[Any] = iter([replace(first, url="ftp://a"), FileSource("/etc/passwd"), first, first])
    first = replace(first, refresh=lambda: next(answers))
    shelf.source = returns(first)  # type: ignore[method-assign]
    store = plugins.open_store("acme://folder", limits=Limits(block_deadline_s=5))
    source = store.source(store.info("folder/model.safetensors"))
    assert isinstance(source, HttpSource)
    assert source == replace(first, ca_file="/ca")
    assert source.refresh is not None
    for told in ("gave a url that is not", "returned FileSource, not HttpSource"):
        with pytest.raises(streamer.PluginError, match=told) as caught:
            source.refresh()
        assert caught.value.method == "refresh"
    assert source.refresh() == source


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_a_hook_that_declines_is_told_of(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    break_method(shelf, monkeypatch, "streamer_open_store", returns(None))
    with pytest.raises(streamer.UnknownSchemeError, match=rf"{BLAME}, which serves acme://, declined this URL"):
        load()


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "raise KeyError", "import sys; sys.exit('bye')"])
def test_a_module_that_ends_the_program_is_a_broken_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    install_plugin(tmp_path, monkeypatch, "acme-store", code, "acme")
    with pytest.raises(streamer.PluginError, match=rf"{BLAME} cannot be imported"):
        load()


def test_a_kind_of_source_that_is_none_breaks_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = HOOK + "@hookimpl\ndef streamer_source_kind(): return 'fast'\n"
    (examined,) = plugins.examine(entry_points=install_plugin(tmp_path, monkeypatch, "acme-store", code, "acme"))
    assert "streamer_source_kind returned str" in str(examined.error)


def test_options_are_refused_where_the_hook_asks_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = HOOK.replace("(uri, storage_options)", "(uri)")
    install_plugin(tmp_path, monkeypatch, "acme-store", code, "acme")
    with pytest.raises(streamer.OptionError, match=r"acme:// has no storage option 'tokn'\. It has none"):
        load(storage_options={"tokn": "x"})
