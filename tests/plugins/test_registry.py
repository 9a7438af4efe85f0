"""The backend of a URL is chosen by its scheme, gets only its scheme's options, and no broken one affects another."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from plugin_distributions import install_plugin

from streamer.backends.builtin_storages import STORES
from streamer.core.errors import ObjectNotFoundError, PluginError, UnknownSchemeError
from streamer.core.options.limits import Limits
from streamer.core.store.names import scheme_of
from streamer.plugins import Backend, examine, installed, open_store, registry
from streamer.plugins.registry import folder_of, options_of

STORE = """
from streamer.core.store.sources import hookimpl

class AStore:
    def __init__(self, scheme, uri, storage_options):
        self.root, self.scheme, self.options, self.maker = uri, scheme, storage_options, __name__
    def info(self, path): ...
    def find(self, prefix): return []
    def source(self, info): ...
    def close(self): ...

@hookimpl
def streamer_open_store(scheme, uri, storage_options):
    return AStore(scheme, uri, storage_options)
"""

LIMITED = "(scheme, uri, limits):\n    return AStore(scheme, uri, limits)"

Install = Callable[..., list[EntryPoint]]

BACKENDS = {
    "s3": "streamer.backends.s3",
    "s3a": "streamer.backends.s3",
    "gs": "streamer.backends.gcs",
    "acme": "acme",
}
BOTH = {"s3": {"key": "a"}, "gs": {"token": "b"}}


@pytest.fixture(autouse=True)
def _nothing_is_warned_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_warned", set())


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with one module, and return the entry points of all those installed so far."""
    return partial(install_plugin, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("uri", "scheme"),
    [
        ("s3://bucket/key", "s3"),
        ("S3A://bucket/key", "s3a"),
        ("/models/a", "file"),
        ("models/a", "file"),
        ("~/a", "file"),
        ("", "file"),
        ("file:///models/a", "file"),
        ("file:/models/a", "file"),
        ("local:///models/a", "file"),
        ("/models/what::ever/a", "file"),
        ("simplecache::s3://bucket/key", "simplecache"),
        ("zip://inner::https://host/a.zip", "zip"),
        ("my+store.v-2://x", "my+store.v-2"),
    ],
)
def test_a_scheme_is_lower_case_and_the_first_of_a_chain(uri: str, scheme: str) -> None:
    assert scheme_of(uri) == scheme


def test_a_third_party_backend_is_found_by_its_scheme(install: Install) -> None:
    found = install("acme-store", STORE, "acme")
    store = open_store("ACME://x/y", {"key": 1}, entry_points=found)
    assert (store.root, store.scheme, store.options) == ("ACME://x/y", "acme", {"key": 1})  # type: ignore[attr-defined]


def test_an_installed_distribution_is_found_without_being_told(install: Install) -> None:
    install("acme-store", STORE, "acme-told-nothing")
    assert open_store("acme-told-nothing://x").root == "acme-told-nothing://x"


def test_a_path_like_object_is_a_path(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_PLUGINS", "acme-store")
    store = open_store(tmp_path, entry_points=install("acme-store", STORE, "file"))
    assert (store.root, store.scheme) == (str(tmp_path), "file")  # type: ignore[attr-defined]


def test_the_callers_options_are_not_handed_out_for_changing(install: Install) -> None:
    options = {"key": 1}
    store = open_store("acme://x", options, entry_points=install("acme-store", STORE, "acme"))
    store.options.clear()  # type: ignore[attr-defined]
    assert options == {"key": 1}


def test_a_backend_is_told_the_limits_if_it_asks_for_them(install: Install) -> None:
    asking = STORE.replace("(scheme, uri, storage_options):\n    return AStore(scheme, uri, storage_options)", LIMITED)
    assert "limits" in asking
    store = open_store("acme://x", entry_points=install("acme-store", asking, "acme"), limits=Limits(listing_entries=7))
    assert store.options.listing_entries == 7  # type: ignore[attr-defined]


def test_only_the_backend_of_the_scheme_is_imported(install: Install) -> None:
    install("broken-store", "raise RuntimeError('must not be imported')", "broken")
    assert open_store("acme://x", entry_points=install("acme-store", STORE, "acme")).root == "acme://x"
    assert "broken_store_module" not in sys.modules


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "has no function streamer_open_store"),
        (STORE.replace("def streamer_open_store", "def streamer_open_stor"), "unknown hook 'streamer_open_stor'"),
        (STORE.replace("scheme, uri, storage_options):\n    return", "scheme, url):\n    return"), "url"),
        (
            STORE.replace("return AStore(scheme, uri, storage_options)", "return 7"),
            "returned int, which lacks info, find, source, close, root",
        ),
        (STORE.replace("    def close(self): ...\n", ""), "returned AStore, which lacks close"),
        (STORE.replace("return AStore(scheme, uri, storage_options)", "raise KeyError(uri)"), "raised KeyError"),
    ],
)
def test_a_broken_backend_is_named_with_its_distribution(install: Install, code: str, told: str) -> None:
    found = install("acme-store", code, "acme")
    with pytest.raises(PluginError, match=r"acme-store 1\.5") as caught:
        open_store("acme://x", entry_points=found)
    assert told in str(caught.value)
    assert "'acme' = 'acme_store_module'" in str(caught.value)


def test_a_backends_own_streamer_error_passes_through(install: Install) -> None:
    code = STORE.replace("return AStore(scheme, uri, storage_options)", "raise ObjectNotFoundError('gone')")
    found = install("acme-store", "from streamer.core.errors import ObjectNotFoundError" + code, "acme")
    with pytest.raises(ObjectNotFoundError, match="gone"):
        open_store("acme://x", entry_points=found)


def test_a_broken_backend_does_not_repeat_the_password_of_the_url(install: Install) -> None:
    code = STORE.replace("return AStore(scheme, uri, storage_options)", "raise KeyError(uri)")
    with pytest.raises(PluginError) as caught:
        open_store("acme://user:CANARY@x", entry_points=install("acme-store", code, "acme"))
    assert "CANARY" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_backend_that_declines_leaves_the_url_to_fsspec(install: Install) -> None:
    code = STORE.replace("return AStore(scheme, uri, storage_options)", "return None")
    assert open_store("memory://a/b", entry_points=install("acme-store", code, "memory")).root == "/a/b"


def test_a_named_distribution_wins_over_ours_with_a_warning(
    install: Install, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMER_PLUGINS", "other, Acme_Store")
    install("streamer", STORE, "s3")
    found = install("acme-store", STORE, "s3")
    with caplog.at_level(logging.WARNING, "streamer"):
        for _ in range(3):  # and says so once
            store = open_store("s3://bucket/key", entry_points=found)
    assert store.maker == "acme_store_module"  # type: ignore[attr-defined]
    assert caplog.messages == ["s3:// is served by acme-store instead of streamer"]


@pytest.mark.parametrize("scheme", ["file", "s3", "gs", "az", "hf", "https", "nfs"])
def test_a_scheme_of_ours_is_not_taken_without_the_users_word(
    install: Install, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    install("streamer", STORE, scheme)
    found = install("acme-store", STORE, scheme)
    with caplog.at_level(logging.WARNING, "streamer"):
        store = open_store(f"{scheme}://bucket/key", entry_points=found)
    assert store.maker == "streamer_module"  # type: ignore[attr-defined]
    (line,) = caplog.messages
    assert line == f"{scheme}:// is not served by acme-store: to allow it, name the distribution in STREAMER_PLUGINS"


def test_a_scheme_of_ours_is_not_taken_where_ours_is_missing(install: Install) -> None:
    found = install("acme-store", "raise RuntimeError('must not be imported')", "nfs")
    with pytest.raises(UnknownSchemeError):
        open_store("nfs://server/x", entry_points=found)


def test_two_other_distributions_with_one_scheme_are_refused_and_both_named(install: Install) -> None:
    install("acme-store", STORE, "acme")
    found = install("emca-store", STORE, "acme")
    with pytest.raises(PluginError, match="acme-store and emca-store both claim acme://"):
        open_store("acme://x", entry_points=found)


def test_a_disabled_distribution_is_left_out(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_DISABLED_PLUGINS", "other, Emca_Store")
    install("acme-store", STORE, "acme")
    found = install("emca-store", STORE, "acme")
    assert open_store("acme://x", entry_points=found).maker == "acme_store_module"  # type: ignore[attr-defined]


def test_an_unknown_scheme_says_what_is_installed(install: Install) -> None:
    with pytest.raises(UnknownSchemeError, match="no backend for zzz://") as caught:
        open_store("zzz://x", entry_points=install("acme-store", STORE, "acme", "emca"))
    assert "Installed backends: acme, emca" in str(caught.value)


def test_a_scheme_of_our_other_distribution_names_it(install: Install) -> None:
    text = (Path(__file__).resolve().parents[2] / "extras/stores/pyproject.toml").read_text()
    assert set(re.findall(r'^(\w+) = "streamer_stores', text, re.MULTILINE)) == set(STORES)
    found = install("acme-store", STORE, "acme")
    for scheme in STORES:
        with pytest.raises(UnknownSchemeError, match="Install streamer-stores"):
            open_store(f"{scheme}://a/b", entry_points=found)


def test_installed_backends_are_listed_without_importing_them(install: Install) -> None:
    install("streamer", "raise RuntimeError", "S3")
    found = install("broken-store", "raise RuntimeError", "broken")
    assert installed(entry_points=found) == [
        Backend("broken", "broken-store", "1.5", builtin=False),
        Backend("s3", "streamer", "1.5", builtin=True),
    ]


def test_importing_the_registry_imports_neither_fsspec_nor_torch() -> None:
    code = "import streamer.plugins, sys; print(sorted({'fsspec', 's3fs', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_examining_imports_every_backend_and_tells_what_is_wrong_with_one(install: Install) -> None:
    kind = STORE + (
        "from streamer.core.store.sources import PythonSource\n"
        "@hookimpl\ndef streamer_source_kind(scheme): return PythonSource\n"
    )
    install("streamer", STORE, "acme")
    install("acme-store", kind, "acme")
    found = install("broken-store", "import no_such_module_anywhere", "broken")
    acme, ours, broken = examine(entry_points=found)
    assert (acme.backend.distribution, acme.reads, acme.is_used, acme.error) == ("acme-store", "Python", True, None)
    assert (ours.backend.distribution, ours.reads, ours.is_used, ours.error) == ("streamer", None, False, None)
    assert (broken.reads, broken.is_used) == (None, True)
    assert broken.error is not None
    assert "no_such_module_anywhere" in broken.error


def test_examining_says_what_is_not_left_to_a_stranger(install: Install) -> None:
    install("streamer", STORE, "s3")
    stranger, ours = examine(entry_points=install("acme-store", STORE, "s3"))
    assert (stranger.backend.distribution, stranger.is_used, ours.is_used) == ("acme-store", False, True)


def test_two_claims_are_told_of_both(install: Install) -> None:
    install("acme-store", STORE, "acme")
    for each in examine(entry_points=install("emca-store", STORE, "acme")):
        assert not each.is_used
        assert "both claim acme://" in str(each.error)


@pytest.mark.parametrize(
    "spelling", ["{}", "{}/", "file://{}", "FILE://localhost{}", "local://localhost{}/*.safetensors", "file://{}/a-?.x"]
)
def test_the_folder_of_a_checkpoint_is_known_however_its_url_is_written(tmp_path: Path, spelling: str) -> None:
    """Of what lies in it, nothing is taken for a plug-in."""
    folder = tmp_path / "my model"
    folder.mkdir()
    assert folder_of(spelling.format(folder)) == str(folder)
    assert folder_of(spelling.format(str(folder).replace(" ", "%20") if "://" in spelling else folder)) == str(folder)


@pytest.mark.parametrize(
    ("uri", "given", "chosen"),
    [
        ("s3://b/k", {"key": "a"}, {"key": "a"}),
        ("s3://b/k", {}, {}),
        ("s3://b/k", BOTH, {"key": "a"}),
        ("s3a://b/k", BOTH, {"key": "a"}),
        ("gs://b/k", BOTH, {"token": "b"}),
        ("memory://k", BOTH, {}),
        ("/a/path", BOTH, {}),
        ("acme://k", {"acme": {"x": 1}, "s3": {"key": "a"}}, {"x": 1}),
        ("s3://b/k", {"s3": {"key": "own", "anon": True}, "key": "for all"}, {"key": "for all", "anon": True}),
        ("s3://b/k", {"client_kwargs": {"verify": "/ca"}}, {"client_kwargs": {"verify": "/ca"}}),
        ("s3://b/k", {"client_kwargs": {"verify": "/ca"}, "gs": {}}, {"client_kwargs": {"verify": "/ca"}}),
        ("s3://b/k", {"s3": "not a mapping"}, {"s3": "not a mapping"}),
        ("simplecache::s3://b/k", BOTH, {"s3": {"key": "a"}}),
        ("zip://f::s3://b/k", {**BOTH, "zip": {"mode": "r"}}, {"s3": {"key": "a"}, "zip": {"mode": "r"}}),
    ],
)
def test_a_url_gets_the_options_of_its_scheme(uri: str, given: dict[str, Any], chosen: dict[str, Any]) -> None:
    scheme = uri.partition(":")[0] if ":" in uri else "file"
    assert options_of(uri, scheme, given, BACKENDS) == chosen


def test_the_callers_options_are_copied() -> None:
    given = {"simplecache": {"expiry": 1}}
    options_of("simplecache::s3://b/k", "simplecache", given, BACKENDS)["simplecache"].clear()
    assert given == {"simplecache": {"expiry": 1}}
