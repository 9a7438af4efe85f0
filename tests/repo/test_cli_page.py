"""``docs/cli.md``: its commands print what it shows, and it names every command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from pages import blocks, text_of
from safetensors.torch import save_file

from streamer._cli import main

PAGE = "docs/cli.md"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = {f"layers.{number}.weight": torch.ones(8, 8) for number in range(2)}
    weights["embed.weight"] = torch.ones(16, 8, dtype=torch.bfloat16)
    for number in (1, 2):
        folder = tmp_path / f"run/{number}"
        folder.mkdir(parents=True)
        weights["layers.1.weight"] = number * torch.ones(8, 8)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text("{}")
    (tmp_path / "run/1/notes.txt").write_text("loss 2.1")


@pytest.mark.usefixtures("runs")
def test_commands_print_what_the_page_shows() -> None:
    examples = "\n".join(blocks(PAGE, "text")).split("$ python -m streamer ")[1:]
    assert len(examples) == 6
    for example in examples:
        command, _, printed = example.partition("\n")
        shown = CliRunner().invoke(main, shlex.split(command)).output
        assert [line.split() for line in shown.splitlines()] == [line.split() for line in printed.strip().splitlines()]


def test_the_page_names_every_command() -> None:
    table = text_of(PAGE).partition("## What is in")[0]
    assert [name for name in main.commands if f"`{name}" not in table] == []
