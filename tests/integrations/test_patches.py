"""Libraries that hold safetensors' readers hold ours while they are patched, and theirs again afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import streamer
from streamer.compat import hooks

URL = "memory://patched/model.safetensors"


def held() -> tuple[object, ...]:
    return (
        safetensors.safe_open,
        safetensors.torch.load_file,
        safetensors.torch.load_model,
        safetensors.numpy.load_file,
    )


ORIGINALS = held()


@pytest.fixture(autouse=True)
def _stored() -> Iterator[None]:
    fsspec.filesystem("memory").pipe_file("/patched/model.safetensors", safetensors.torch.save({"a": torch.ones(3)}))
    yield
    assert held() == ORIGINALS


@pytest.fixture
def library() -> Iterator[types.ModuleType]:
    """A library that was imported before, and binds a reader under a name of its own."""
    made = types.ModuleType("some_library")
    made.opener = safetensors.safe_open
    sys.modules["some_library"] = made
    yield made
    del sys.modules["some_library"]


def test_every_name_that_a_loaded_library_holds_is_ours_inside_the_block(library: types.ModuleType) -> None:
    with streamer.patched() as names:
        assert {"safetensors.safe_open", "safetensors.torch.load_file", "some_library.opener"} <= set(names)
        with library.opener(URL, framework="pt") as handle:
            assert handle.get_tensor("a").tolist() == [1, 1, 1]
        assert safetensors.torch.load_file(URL)["a"].tolist() == [1, 1, 1]
    assert library.opener is ORIGINALS[0]


def test_what_was_bound_meanwhile_is_theirs_afterwards(library: types.ModuleType) -> None:
    with streamer.patched():
        library.late = safetensors.torch.load_file
    assert library.late is ORIGINALS[1]


def test_a_module_that_imported_our_function_keeps_it(library: types.ModuleType) -> None:
    from streamer.compat.safetensors import safe_open

    library.chosen = safe_open
    with streamer.patched():
        assert library.chosen is safe_open
    assert library.chosen is safe_open


def test_the_last_of_several_undoes_it_in_any_order() -> None:
    assert streamer.patch() == streamer.patch()
    with streamer.patched():
        streamer.unpatch()
        streamer.unpatch()
        assert safetensors.torch.load_file(URL)
    assert held() == ORIGINALS
    streamer.unpatch()  # one too many
    assert held() == ORIGINALS


def test_what_somebody_else_put_there_meanwhile_stays(library: types.ModuleType) -> None:
    streamer.patch()
    library.opener = other = object()
    streamer.unpatch()
    assert library.opener is other


def test_what_somebody_else_put_there_before_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*arguments: object) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "load_file", other)
        with streamer.patched():
            assert safetensors.torch.load_file(URL)["a"].tolist() == [1, 1, 1]
        assert safetensors.torch.load_file is other


def test_an_exception_undoes_it() -> None:
    with pytest.raises(ValueError, match="mine"), streamer.patched():
        raise ValueError("mine")


def test_threads_patch_and_undo_at_the_same_time() -> None:
    def work() -> None:
        for _ in range(20):
            with streamer.patched():
                assert safetensors.torch.load_file(URL)["a"].tolist() == [1, 1, 1]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    hooks._log_disabled.cache_clear()
    with caplog.at_level("INFO", logger="streamer"):
        assert streamer.patch() == []
    assert len(caplog.messages) == 4
    assert "safetensors.safe_open is not used, as STREAMER_DISABLE_PATCHES=1 says; so it stays as it is" in caplog.text
    with streamer.patched() as names:
        assert names == []
        assert held() == ORIGINALS
    streamer.unpatch()


def test_a_name_that_takes_what_ours_does_not_is_left_alone_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def later(filename: str, device: str = "cpu", *, backend: str = "mmap", threads: int = 8) -> None: ...

    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "load_file", later)
        with streamer.patched() as names:
            assert safetensors.torch.load_file is later
            assert "safetensors.safe_open" in names
    (line,) = caplog.messages
    assert "safetensors.torch.load_file of safetensors" in line
    assert "streamer's reader has no argument 'threads'" in line


def test_a_name_that_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()
    with monkeypatch.context() as patched:
        patched.delattr(safetensors.torch, "load_model")
        with streamer.patched() as names:
            assert "safetensors.torch.load_file" in names
    assert ["no such name" in line for line in caplog.messages] == [True]


SCRIPT = """
import sys
import fsspec, safetensors.torch, torch
from safetensors import safe_open
import beside
fsspec.filesystem("memory").pipe_file("/m.safetensors", safetensors.torch.save({"a": torch.ones(2)}))
print(__name__, sys.argv[1:], safe_open("memory://m.safetensors", "pt").get_tensor("a").tolist())
raise SystemExit(3)
"""


@pytest.mark.parametrize("way", [["script.py"], ["-m", "script"]], ids=["script", "module"])
def test_a_script_runs_patched_with_its_arguments_and_its_exit_status(tmp_path: Path, way: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("")
    run = [sys.executable, "-m", "streamer", "run", *way, "--model", "x", "-h"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (3, "__main__ ['--model', 'x', '-h'] [1.0, 1.0]"), done.stderr
