"""A path that leads nowhere: the error says where it ends, and what was probably meant."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "llama-8b").mkdir()
    save_file({"a": torch.zeros(2)}, tmp_path / "llama-8b" / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(uri: str | Path) -> str:
    with pytest.raises(streamer.ObjectNotFoundError) as caught:
        streamer.load(uri)
    assert caught.value.code == "ENOENT"
    return str(caught.value.hint)


def test_the_error_for_a_misspelt_name_suggests_a_similar_one(models: Path) -> None:
    lacking = "'modle.safetensors' does not exist. Near: 'model.safetensors'"
    assert said(models / "llama-8b" / "modle.safetensors") == lacking
    assert said("llama-8b/modle.safetensors") == lacking


def test_the_folder_with_a_typo_is_named_and_not_what_follows_it(models: Path) -> None:
    assert said(models / "lama-8b" / "x" / "model.safetensors") == "'lama-8b' does not exist. Near: 'llama-8b'"


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "openai/gpt-oss@main"])
def test_the_error_for_a_name_of_the_hub_suggests_its_url(models: Path, name: str) -> None:
    assert said(name) == f"A model of the Hugging Face Hub is hf://{name}; otherwise check the path"


@pytest.mark.parametrize("path", ["a/b/c", "a/b.safetensors", "/a/b", "./a/b", "a", "a/..b", "~/a"])
def test_any_other_path_is_not_taken_for_one(models: Path, path: str) -> None:
    assert "hf://" not in said(path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (" llama-8b", "There is a space, a quote or a line end around it: strip that"),
        ("llama-8b/model.safetensors\n", "There is a space, a quote or a line end around it: strip that"),
        ("'/models'", "There is a space, a quote or a line end around it: strip that"),
        ("$HOME/models", "$HOME is not replaced by its value here: os.path.expandvars does that"),
        ("${MODELS}/llama", "${MODELS} is not replaced by its value here: os.path.expandvars does that"),
        ("llama-8b/model-{1,2}.safetensors", "Braces are no pattern here: use *, ? or [...] in the last part"),
        ("file://models/llama", "A file:// URL has an absolute path: file:///folder/file"),
        ("s3:bucket/model", "A URL has two slashes after its scheme: s3://…"),
    ],
)
def test_a_mistake_that_shows_in_the_text_is_named(models: Path, text: str, hint: str) -> None:
    assert said(text).startswith(hint)


@pytest.mark.parametrize("name", ["$x", "{a,b}", " a", "a'", "s3:x"])
def test_a_file_with_such_a_name_is_loaded(models: Path, name: str) -> None:
    save_file({"b": torch.zeros(2)}, models / name)
    assert list(streamer.load(name)) == ["b"]


def test_the_error_for_an_unknown_name_lists_the_shards(models: Path) -> None:
    (models / "llama-8b" / "notes.txt").touch()
    assert said("llama-8b/xyz.safetensors").endswith("is mounted. The folder holds model.safetensors")
    assert said(models / "xyz" / "llama-8b") == "Check the path, and that its disk is mounted"


def test_a_file_in_the_place_of_a_folder_is_called_one(models: Path) -> None:
    with pytest.raises(streamer.ObjectNotFoundError, match="ENOTDIR") as caught:
        streamer.load(models / "llama-8b" / "model.safetensors" / "x")
    assert caught.value.hint == "'model.safetensors' is a file, not a folder"


def test_a_link_that_leads_nowhere_is_called_that(models: Path) -> None:
    link = models / "model.safetensors"
    link.symlink_to("/no/such/blob")
    assert said(link).startswith("It is a link to '/no/such/blob', which leads nowhere")
    assert said(models / "*.safetensors").startswith("It is a link to")


def test_a_folder_that_may_not_be_listed_hides_only_the_near_names(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert said(models / "llama-8b" / "modle.safetensors") == "Check the path, and that its disk is mounted"


def test_an_empty_folder_is_called_that(tmp_path: Path) -> None:
    with pytest.raises(streamer.ObjectNotFoundError, match="The folder is empty") as caught:
        streamer.load(tmp_path)
    assert "that its disk is mounted" in str(caught.value.hint)


def test_a_working_directory_that_was_deleted_is_named_and_matters_to_relative_paths_alone(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = models / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(streamer.UsageError, match="The working directory does not exist any more"):
        streamer.load("model.safetensors")
    assert list(streamer.load(models / "llama-8b")) == ["a"]
