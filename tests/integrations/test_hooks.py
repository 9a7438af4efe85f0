"""A hook is judged by what it is: its name, its signature, and two tensors that go through it."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from streamer.compat import hooks
from streamer.compat.hooks import Hook, imported, package_with
from streamer.core.errors import UsageError


@pytest.fixture(autouse=True)
def _tried_anew(monkeypatch):
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()
    hooks._log_disabled.cache_clear()


@pytest.fixture
def host(monkeypatch):
    """A library of one module."""
    module = types.ModuleType("some_host")
    module.__version__ = "7.8"
    module.read = lambda path, device, *, backend=None: path
    monkeypatch.setitem(sys.modules, "some_host", module)
    return module


def hook(name="read", **what):
    return Hook("some_host", name, otherwise="weights take another way", **what)


def test_a_name_that_takes_what_is_passed_fits(host, caplog):
    assert hook(positional=2, keywords=("backend",), dry_run=lambda: True).fits()
    assert not caplog.messages


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"name": "gone"}, "no such name"),
        ({"name": "read.gone"}, "no such name"),
        ({"positional": 3}, "its arguments have changed (too many positional arguments)"),
        ({"positional": 2, "keywords": ("threads",)}, "its arguments have changed (got an unexpected keyword"),
        ({"dry_run": lambda: False}, "did not come out of it as they went in"),
        ({"dry_run": lambda: {}["layer"]}, "did not go through it: KeyError"),
    ],
)
def test_what_does_not_fit_is_one_line_in_the_log(host, caplog, what, reason):
    assert not hook(**what).fits()
    assert not hook(**what).fits()
    (line,) = caplog.messages
    assert line.startswith(f"some_host.{what.get('name', 'read')} of some_host 7.8 does not fit: ")
    assert reason in line
    assert "weights take another way" in line
    assert "report" in line


def test_a_module_that_is_gone_does_not_fit(host):
    assert "no such name" in Hook("some_host.reading", "read", otherwise="").misfit()


def test_a_hook_is_tried_once(host):
    tried = []
    wanted = hook(dry_run=lambda: tried.append(1) or True)
    assert [wanted.fits() for _ in range(3)] == [True] * 3
    assert tried == [1]


def test_a_rejected_hook_is_not_used_again(host, caplog):
    wanted = hook()
    assert wanted.fits()
    wanted.reject("weights were not read through it")
    assert not wanted.fits()
    assert len(caplog.messages) == 1


def test_disabled_patches_turn_all_hooks_off(host, caplog, monkeypatch):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    with caplog.at_level(logging.INFO, "streamer"):
        assert not hook().fits()
        assert not hook().fits()
    assert caplog.messages == [
        "some_host.read is not used, as STREAMER_DISABLE_PATCHES=1 says; so weights take another way"
    ]


def test_what_nothing_can_take_the_place_of_is_an_error_that_names_the_version_wanted(host):
    assert hook().demand("8.0") is host.read
    with pytest.raises(UsageError, match=r"some_host\.gone of some_host 7\.8 cannot.*Install some_host 8\.0"):
        hook("gone").demand("8.0")


def test_an_absent_library_is_an_error():
    with pytest.raises(UsageError, match=r"^no_such_host is not installed\. pip install no_such_host$"):
        imported("no_such_host.reading")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("from sys import no_such_name", "ImportError: cannot import name 'no_such_name'"),
        ("raise RuntimeError('built for another torch')", "RuntimeError: built for another torch"),
    ],
)
def test_a_library_whose_import_fails_shows_the_error_of_that_import(tmp_path, monkeypatch, text, shown):
    (tmp_path / "broken_host.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="broken_host is installed, and its import fails: ") as caught:
        Hook("broken_host", "read", otherwise="").fits()
    assert shown in str(caught.value)
    assert str(caught.value.__cause__) in shown + str(caught.value)


def test_a_class_belongs_to_the_copy_that_made_it():
    copied = type("Copied", (), {"__module__": "maker.parts.some_host.models"})
    assert package_with("some_host", copied) == "maker.parts.some_host"
    assert package_with("some_host", type("Own", (copied,), {"__module__": "mine"})) == "maker.parts.some_host"
    assert package_with("some_host", type("Own", (), {"__module__": "mine"})) == "some_host"
