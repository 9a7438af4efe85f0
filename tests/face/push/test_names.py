"""Names of files, byte for byte, through each verb and storage: a name is no URL, no pattern and no path."""

from __future__ import annotations

import json
import os
import socket
import unicodedata
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from each_row import each_row
from fsspec.implementations.memory import MemoryFileSystem
from servers.nginx import NginxServer

import streamer
from streamer._cli import main
from streamer.core.store.uploads import UploadingStore
from streamer.plugins import open_store

PLACES = ("s3", "gs", "az", "memory", "file", "http")
SERVERS = {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}
Place = tuple[str, dict[str, Any]]

NAMES = (
    "100%25.json",
    "100%.json",
    "a%2Fb.json",
    "%2e%2e%2fa.json",
    "a#b.json",
    "a?b=c.json",
    "a+b c&d=e;f.json",
    " leading.json",
    "trailing ",
    "trailing.",
    ".hidden",
    "..two",
    "...",
    "a\tb.json",
    "[ab]*{c}.json",
    "~a.json",
    "a:b@c.json",
    "a|b<c>\"'`$^.json",
    unicodedata.normalize("NFC", "\xe9.json"),
    unicodedata.normalize("NFD", "\xe9.json"),
    "名前🚀.json",
    "n" * 250 + ".json",
    "模" * 83 + ".json",
    "A.json",
    "a.json",
    "s%2Fb/a%2e.json",
    "s b/c#/a?.json",
)
WEIGHTS = [f"{stem}.safetensors" for stem in ("100%25", "a%2Fb", "a#b", "a?b", " a b ", "\xe9", "名" * 70, "x..")]
# What a storage refuses, or gives another name.
NOT_IN = {"gs": "a\nb.json", "az": "a\\b.json", "s3": "a\\b.json"}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = f"names-{tmp_path.name}"
    if request.param in SERVERS:
        return f"{request.param}://private/{name}", request.getfixturevalue(SERVERS[request.param]).storage_options()
    if request.param == "http":
        server: NginxServer = request.getfixturevalue("http_server")
        return f"{server.http_url}/dav/saved/{name}", {}
    return f"memory://{name}" if request.param == "memory" else str(tmp_path / name), {}


def run(*words: str, **options: dict[str, Any]) -> Result:
    more = [each for name, value in options.items() for each in (f"--{name.replace('_', '-')}", json.dumps(value))]
    return CliRunner().invoke(main, [*words, *more, *([] if words[0] == "check" else ["--quiet"])])


def copied(*words: str, **options: dict[str, Any]) -> None:
    done = run(*words, **options)
    assert done.exit_code == 0, done.output


def content_of(folder: Path) -> dict[bytes, bytes]:
    found = (Path(root, name) for root, _, names in os.walk(folder) for name in names if ".streamer-pull" not in root)
    return {os.fsencode(each.relative_to(folder)): each.read_bytes() for each in found}


def filled(folder: Path, names: tuple[str | bytes, ...] = NAMES) -> Path:
    for at, name in enumerate(names):
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % at)
    return folder


def test_each_name_is_kept_by_push_copy_and_pull_regression(place: Place, tmp_path: Path) -> None:
    (uri, options), source = place, filled(tmp_path / "source")
    if uri.startswith(("memory", "/")):
        filled(source, ("a\nb.json", "a\\b.json"))
    for hidden in (".hidden", "..two", "...") if uri.startswith("http") else ():  # nginx's pages do not show them
        (source / hidden).unlink()
    copied("push", str(source), f"{uri}/one", storage_options=options)
    copied("copy", f"{uri}/one", f"{uri}/two", from_options=options, to_options=options)
    copied("pull", f"{uri}/two", str(tmp_path / "back"), storage_options=options)
    assert content_of(tmp_path / "back") == content_of(source)


def test_a_checkpoint_of_any_name_is_saved_loaded_and_checked(place: Place) -> None:
    uri, options = place
    tensors = {"a": np.arange(5, dtype="f4")}
    how: dict[str, Any] = {"storage_options": options, "framework": "np", "progress": False, "verify": "manifest"}
    for at, name in enumerate(WEIGHTS):
        file = f"{uri}/{at}/{name.replace('%', '%25').replace('#', '%23').replace('?', '%3F')}"
        file = file if uri.startswith("http") else f"{uri}/{at}/{name}"
        streamer.save(tensors, file, storage_options=options, progress=False)
        for each in (file, f"{uri}/{at}"):
            assert np.array_equal(streamer.load(each, **how)["a"], tensors["a"]), each
        assert run("check", file, storage_options=options).exit_code == 0


@pytest.mark.parametrize("storage", NOT_IN)
def test_a_name_that_a_storage_cannot_hold_is_refused_regression(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options = request.getfixturevalue(SERVERS[storage]).storage_options()
    source = filled(tmp_path / "source", ("b.json", NOT_IN[storage]))
    done = run("push", str(source), f"{storage}://private/not-{tmp_path.name}", storage_options=options)
    assert done.exit_code != 0
    assert repr(NOT_IN[storage]) in done.output


@pytest.mark.parametrize("storage", SERVERS)
def test_a_name_that_is_not_utf_8_is_kept_on_disks_and_refused_by_object_stores_regression(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options = request.getfixturevalue(SERVERS[storage]).storage_options()
    source = filled(tmp_path / "source", (b"a\xff.json", "b.json"))
    copied("push", str(source), str(tmp_path / "pushed"))
    copied("pull", str(source), str(tmp_path / "pulled"))
    assert content_of(source) == content_of(tmp_path / "pushed") == content_of(tmp_path / "pulled")
    uri = f"{storage}://private/bytes-{tmp_path.name}"
    done = run("push", str(source), uri, storage_options=options)
    assert (done.exit_code, "dcff" in done.output) == (2, True), done.output
    with closing(open_store(uri, options)) as store:
        assert not store.find(store.root)


@pytest.mark.parametrize("storage", ["gs", "az"])  # SeaweedFS joins slashes; S3 itself does not
@pytest.mark.parametrize("name", ["/config.json", "sub//config.json", "//x.json", "sub//"])
def test_a_folder_without_a_name_is_listed_once_and_named_regression(
    storage: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options = request.getfixturevalue(SERVERS[storage]).storage_options()
    uri = f"{storage}://private/slashes-{tmp_path.name}"
    name = name + "a.json" if name.endswith("/") else name
    with closing(open_store(uri, options)) as store:
        assert isinstance(store, UploadingStore)
        for each in ("a.json", name):
            upload = store.begin_upload(f"{store.root}/{each}", 2, 1 << 24, None)
            upload.send(0, memoryview(b"{}"))
            upload.finish()
    refused = run("pull", uri, str(tmp_path / "to"), storage_options=options)
    assert refused.exit_code == 65
    assert repr(name) in refused.output
    copied("pull", uri, str(tmp_path / "to"), "--exclude", f"*{name}", storage_options=options)
    assert content_of(tmp_path / "to") == {b"a.json": b"{}"}


def test_streamer_of_fsspec_writes_nothing_outside_of_the_target_regression(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/names-up/sub/a", b"1")
    fs.store["/names-up/../../evil"] = fs.store["/names-up/sub/a"]
    try:
        with pytest.raises(ValueError, match=r"outside|leads out"):
            fsspec.filesystem("streamer", fs=fs).get("/names-up/", f"{tmp_path}/in/to/", recursive=True)
    finally:
        del fs.store["/names-up/../../evil"]
    assert not list(tmp_path.rglob("evil"))


@each_row("kind", ["FIFO", "socket"])
@each_row(
    ("verb", "scheme"),
    [("push", ""), ("copy", ""), ("pull", ""), ("copy", "simplecache::file://"), ("pull", "simplecache::file://")],
)
def test_what_is_no_file_is_named_before_anything_is_written_regression(
    verb: str, scheme: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left out in silence."""
    source = tmp_path / "m"
    (source / "sub").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    monkeypatch.chdir(source / "sub")  # the whole path may be longer than a socket's
    if kind == "FIFO":
        os.mkfifo("odd")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("odd")
    words = [verb, f"{scheme}{source}", str(tmp_path / "new"), "--quiet"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code not in (0, 1)
    assert f"{source}/sub/odd: This is a " in refused.output
    assert kind in refused.output
    assert "--exclude" in refused.output
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").glob("config.json"))
    done = CliRunner().invoke(main, [*words, "--exclude", "sub/odd"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new/config.json").read_text() == "{}"


class ListsOtherwise(MemoryFileSystem):
    """Lists a file of this name late, or by another name."""

    protocol = "otherwise"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    other_name: str | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("otherwise://")))

    def ls(self, path: str, detail: bool = True, **named: Any) -> list[Any]:
        entries = [dict(entry) for entry in super().ls(path, detail=True, **named)]
        if self.other_name is None:
            return [entry for entry in entries if not entry["name"].endswith("b.json")]
        return [{**entry, "name": entry["name"].replace("b.json", self.other_name)} for entry in entries]


@pytest.mark.parametrize("other_name", [None, "B.json"])
def test_a_late_listing_is_no_changed_name_regression(
    other_name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A push that had sent everything failed, and said that the storage may have changed the name."""
    monkeypatch.setattr(ListsOtherwise, "other_name", other_name)
    fsspec.register_implementation("otherwise", ListsOtherwise, clobber=True)
    source = filled(tmp_path / "source", ("a.json", "b.json"))
    (source / "b.json").write_text("[1, 2, 3]")
    done = run("push", str(source), f"otherwise://{tmp_path.name}-{other_name}")
    if other_name is None:
        assert done.exit_code == 0, done.output
        assert "b.json: the storage finds it by name, but does not list it yet" in done.output + caplog.text
    else:
        assert done.exit_code != 0
        assert "'b.json' was sent; the storage lists 'B.json', and not this name. All files were sent" in done.output
