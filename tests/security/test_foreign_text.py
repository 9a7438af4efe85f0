"""What others wrote (servers, file names, checkpoints) reaches messages, logs and terminals as letters only."""

from __future__ import annotations

import errno
import io
import logging
import os
import traceback

import pytest
import torch
from click.testing import CliRunner
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer import plugins
from streamer._cli import main
from streamer._progress import Progress
from streamer.core import errors
from streamer.core.outages.news import OutageLog, line_of
from streamer.core.quoting import printable
from streamer.plugins import Backend, Examined

# Clears the screen, names the window, goes to the line's begin, a C1 sequence, turns the direction, half a character.
EVIL = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202eevil\u2066\u2028\x7f\udc9b\0"
HASTY = streamer.Options(max_attempts=1, block_deadline_s=2.0, block_bytes=64 << 10)


def assert_fit(text: str) -> None:
    assert text.isprintable(), ascii(text)
    assert "evil" in text or "owned" in text or "[2J" in text


@given(st.text())
def test_printable_text_is_one_line_of_letters(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert printable(text) == text or not text.isprintable()


@each_row("name", [name for name in streamer.__all__ if name.endswith("Error")])
def test_every_error_shows_foreign_text_as_letters(name):
    cls = getattr(errors, name)
    error = cls(EVIL, uri=f"s3://bucket/{EVIL}", hint=EVIL)
    if hasattr(error, "code"):
        error.code = EVIL
    if hasattr(error, "request_id"):
        error.request_id = EVIL
    texts = [str(error), repr(error), error.message, error.uri, error.hint, *map(str, error.args)]
    texts += [text for text in vars(error).values() if isinstance(text, str)]
    for text in texts:
        assert_fit(text)


def test_an_error_stays_so_when_it_is_changed_on_its_way():
    error = errors.StorageError("all is well")
    error.message += EVIL
    assert_fit(str(error))


ANSWERS = {
    "message": lambda answer: answer.become(
        403, f"<Error><Code>Evil</Code><Message>{EVIL}</Message></Error>".encode("utf8", "replace")
    ),
    "code": lambda answer: answer.become(403, b"<Error><Code>\x1b[2Jevil\r\n</Code></Error>"),
    "not UTF-8": lambda answer: answer.become(403, b"<Error><Code>x</Code><Message>\xe9\xff evil</Message></Error>"),
    "request id": lambda answer: answer.become(403, b"", x_amz_request_id="evil \x1b[2J \x9b31m"),
    "range": lambda answer: answer.headers.update({"Content-Range": "bytes evil \x1b[2J \x9b31m"}),
    "encoding": lambda answer: answer.headers.update({"Content-Encoding": "evil \x1b[2J \x9b31m"}),
    "version": lambda answer: answer.headers.update({"ETag": '"evil \x1b[2J \x9b31m"'}),
}


@each_row("lies", ANSWERS)
def test_an_answer_of_a_web_server(lies):
    script = lambda asked, answer: ANSWERS[lies](answer) if asked.begin > 100_000 else None  # noqa: E731
    with (
        ScriptedServer(save({"weight": torch.arange(60_000.0)}), script) as server,
        pytest.raises(streamer.StreamerError) as caught,
    ):
        streamer.load(server.url, options=HASTY, progress=False)
    shown = [str(caught.value), *(text for text in vars(caught.value).values() if isinstance(text, str))]
    assert all(text.isprintable() for text in shown), ascii(shown)
    for line in traceback.format_exception(caught.value):
        assert "\x1b" not in line
        assert "\x9b" not in line


def test_the_name_of_a_file(tmp_path):
    folder = tmp_path / "\x1b[2Jevil\n"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"no checkpoint")
    with pytest.raises(streamer.FormatError) as caught:
        streamer.load(folder)
    assert_fit(str(caught.value))
    with pytest.raises(streamer.ObjectNotFoundError) as missing:
        streamer.load(folder / "b.safetensors")
    assert_fit(str(missing.value))
    assert missing.value.code == errno.errorcode[errno.ENOENT]


def test_the_name_of_a_file_that_is_no_text(tmp_path):
    name = os.fsdecode(bytes(tmp_path) + b"/\x9b31mevil.safetensors")
    with pytest.raises(streamer.ObjectNotFoundError) as caught:
        streamer.load(name)
    assert_fit(str(caught.value))
    str(caught.value).encode()  # it can be printed


def test_a_file_whose_name_is_no_text_is_loaded_regression(tmp_path):
    """pybind11's TypeError came out of it, and one stray file kept a folder from being loaded."""
    save_file({"weight": torch.arange(9.0)}, tmp_path / "a.safetensors")
    os.rename(tmp_path / "a.safetensors", bytes(tmp_path) + b"/\xe9.safetensors")
    assert list(streamer.load(tmp_path)) == ["weight"]
    assert list(streamer.load(os.fsdecode(bytes(tmp_path) + b"/\xe9.safetensors"))) == ["weight"]


@pytest.mark.parametrize("ask", [{"names": "evil\x1b[2J"}, {"dtype": "evil\x1b[2J"}, {"device": "evil\x1b[2J"}])
def test_what_the_caller_passes_on(tmp_path, ask):
    save_file({"weight\x1b[2J": torch.arange(9.0)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.StreamerError) as caught:
        streamer.load(tmp_path / "a.safetensors", **ask)
    assert_fit(str(caught.value))


def test_the_name_of_a_tensor_in_a_target(tmp_path):
    save_file({"evil\x1b[2J\r": torch.arange(9.0)}, tmp_path / "a.safetensors")
    with pytest.raises(streamer.TargetError) as caught:
        streamer.load_into(tmp_path / "a.safetensors", {"evil\x1b[2J\r": torch.zeros(3)})
    assert_fit(str(caught.value))


def test_the_log_of_a_load_and_its_report(tmp_path, caplog):
    path = tmp_path / "evil\x1b[2J\r\n.safetensors"
    save_file({"weight": torch.arange(9.0)}, path)
    with caplog.at_level(logging.DEBUG, "streamer"), streamer.stream(path, verify="auto") as tensors:
        for _ in tensors:
            pass
    lines = [record.getMessage() for record in caplog.records if record.name == "streamer"]
    assert len(lines) == 3  # of them two say that nothing was verified
    for line in [*lines, str(tensors.report)]:
        assert_fit(line)


def test_the_log_of_an_outage(caplog):
    with caplog.at_level(logging.DEBUG, "streamer"):
        outage_log = OutageLog()
        outage_log.away(f"ftp://{EVIL}", 2.0, 3, EVIL)
        outage_log.again(f"ftp://{EVIL}")
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert_fit(record.getMessage())
    assert_fit(line_of(EVIL, 2.0))


def test_the_progress_bar(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("streamer._progress.SHOWN_AFTER_S", 0)
    with Progress(True, 100, f"{EVIL}a label") as bar:
        bar.update(lambda: 50)
        bar.note(f"{EVIL}a note")
        bar.note("")
    assert "a label" in screen.getvalue()
    assert "a note" in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()


def test_the_command_line(tmp_path, monkeypatch):
    folder = tmp_path / "\x1b[2Jevil"
    folder.mkdir()
    save_file({"weight": torch.arange(9.0)}, folder / "model.safetensors")
    assert_fit(CliRunner().invoke(main, ["manifest", str(folder)], color=True).output.rstrip("\n"))
    broken = Backend("evil\x1b[2J", "acme\x1b[2J", "1\x1b[2J", builtin=False)
    monkeypatch.setattr(plugins, "examine", lambda: [Examined(broken, None, is_used=True, error=EVIL)])
    output = CliRunner().invoke(main, ["plugins"], color=True).output
    assert all(line.isprintable() for line in output.splitlines())
    storages, _, _ = output.partition("\n\n")  # the formats follow
    for line in storages.splitlines()[1:]:
        assert_fit(line)
