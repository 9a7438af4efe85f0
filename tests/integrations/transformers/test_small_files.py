"""Tokenizers and processors whose files have unusual names: all storages give what the folder itself gives."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from fsspec.implementations.local import LocalFileSystem
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, PhobertTokenizer, PreTrainedTokenizerFast

import streamer
from streamer.core.shards import small_files as reading
from streamer.integrations import small_files
from streamer.integrations.diffusers import from_pretrained as of_diffusers

pytestmark = pytest.mark.server

TEXT = "hello low world"
WEIGHTS = ("pytorch_model.bin", "model.gguf", "model.onnx_data", "optimizer.pt", "consolidated.00.pth", "a.safetensors")
CODE_AND_NOTES = ("code.py", "state.pkl", ".gitattributes")
WORDS = """
from pathlib import Path
import yaml
from transformers import PreTrainedTokenizer

class Words(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "words.yaml"}

    def __init__(self, vocab_file=None, **others):
        self.words = yaml.safe_load(Path(vocab_file).read_text()) if vocab_file else ["[no words]"]
        super().__init__(**others)

    vocab_size = property(lambda self: len(self.words))

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}

    def _tokenize(self, text):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.words.index(token) if token in self.words else 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """PhoBERT, which needs ``bpe.codes``."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("tokenizers") / "phobert"
    letters = sorted({*"helowrd"})
    pieces = [*(f"{each}@@" for each in letters), *letters, "he@@", "lo@@", "low"]
    (source / "vocab.txt").write_text("".join(f"{each} 1\n" for each in pieces))
    (source / "bpe.codes").write_text("h e 10\nl o 9\nlo w</w> 8\n")
    PhobertTokenizer(str(source / "vocab.txt"), str(source / "bpe.codes")).save_pretrained(target)
    return target


@pytest.fixture(params=["disk", "s3", "http"])
def place(request, folder):
    """Put a folder somewhere; gives its URL and storage options."""

    def put(path, name):
        if request.param == "disk":
            return str(path), None
        if request.param == "s3":
            server = request.getfixturevalue("s3_server")
            return server.upload_folder(path, "private", f"small-files/{name}"), server.storage_options()
        server = request.getfixturevalue("http_server")
        shutil.copytree(path, server.root / "small-files" / name, dirs_exist_ok=True)
        return f"{server.http_url}/open/small-files/{name}", None

    return put


def tokens(tokenizer):
    return tokenizer(TEXT)["input_ids"]


def from_pretrained(cls, uri, storage_options=None, **named):
    return streamer.transformers.from_pretrained(cls, uri, storage_options=storage_options, **named)


def test_a_tokenizer_with_a_file_of_an_unusual_name_regression(place, folder):
    ours = from_pretrained(AutoTokenizer, *place(folder, "phobert"))
    assert tokens(ours) == tokens(AutoTokenizer.from_pretrained(folder))


def test_the_code_of_a_tokenizer_reads_a_file_of_its_own_regression(place, tmp_path):
    (tmp_path / "words.yaml").write_text("['[UNK]', hello, low, world]")
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["words.Words", null]}}')
    uri, storage_options = place(tmp_path, "of-code")
    ours = from_pretrained(AutoTokenizer, uri, storage_options, trust_remote_code=True)
    assert tokens(ours) == [1, 2, 3]


def words(**named):
    whole = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1}, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="[UNK]", **named)


def test_the_chat_templates_of_a_sub_folder_come_too_regression(place, tmp_path):
    words(chat_template={"default": "a", "tools": "b"}).save_pretrained(tmp_path)
    assert (tmp_path / "additional_chat_templates").is_dir()
    ours = from_pretrained(AutoTokenizer, *place(tmp_path, "templates"))
    assert ours.chat_template == {"default": "a", "tools": "b"}


@pytest.fixture
def written(monkeypatch):
    """The names of the files that are read."""
    names = []

    def read_files(store, infos, settings):
        names.extend(info.uri.rpartition("/")[2] for info in infos)
        return reading.read_files(store, infos, settings)

    monkeypatch.setattr(small_files, "read_files", read_files)
    return names


def test_weights_code_and_notes_stay_where_they_are(place, tmp_path, written):
    words().save_pretrained(tmp_path)
    for name in (*WEIGHTS, *CODE_AND_NOTES):
        (tmp_path / name).write_text("raise SystemExit")
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "model.safetensors").touch()
    (tmp_path / "checkpoint-500" / "trainer_state.json").write_text("{}")
    from_pretrained(AutoTokenizer, *place(tmp_path, "weights"))
    assert set(written) == {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("name", ["large.txt", "large.parquet"])
def test_a_large_file_is_left_also_where_a_listing_has_no_sizes_regression(http_server, tmp_path, name, caplog):
    words().save_pretrained(folder := http_server.root / "small-files" / f"beside-{name}")
    with open(folder / name, "wb") as file:
        os.truncate(file.fileno(), 200 << 20)
    ours = from_pretrained(AutoTokenizer, f"{http_server.http_url}/open/small-files/beside-{name}")
    assert ours("hello")["input_ids"] == [1]
    assert {each.range for each in http_server.requests(f"beside-{name}/{name}")} <= {"bytes=0-0", ""}
    assert f"{name}: not pulled, as it is no small file" in caplog.text


def test_the_largest_unusual_files_are_left_out_of_many(tmp_path, monkeypatch, caplog, written):
    monkeypatch.setattr(small_files, "MOST_BYTES", 10_000)
    words().save_pretrained(tmp_path)
    for size in (1, 500, 20_000):
        (tmp_path / f"notes-{size}").write_bytes(bytes(size))
    from_pretrained(AutoTokenizer, tmp_path)
    assert {each for each in written if each.startswith("notes")} == {"notes-1", "notes-500"}
    assert "notes-20000: not pulled, as the files beside the weights are too large together" in caplog.text


class Guarded(LocalFileSystem):
    """Does not open some files."""

    guarded = ("notes.bak",)

    def open(self, path, *arguments, **named):
        if path.endswith(self.guarded):
            raise PermissionError(13, "Permission denied", path)
        return super().open(path, *arguments, **named)


def test_a_file_of_an_unusual_name_that_may_not_be_read_is_left_with_a_warning(tmp_path, caplog, monkeypatch):
    words().save_pretrained(tmp_path)
    (tmp_path / "notes.bak").write_text("a")
    ours = streamer.transformers.from_pretrained(AutoTokenizer, tmp_path, fs=Guarded())
    assert ours("hello")["input_ids"] == [1]
    assert "notes.bak: not pulled, as it may not be read" in caplog.text
    monkeypatch.setattr(Guarded, "guarded", ("tokenizer.json",))
    with pytest.raises(streamer.AccessDeniedError, match=r"tokenizer\.json"):
        streamer.transformers.from_pretrained(AutoTokenizer, tmp_path, fs=Guarded())


def test_a_folder_of_many_folders_is_not_searched(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(small_files, "MOST_FOLDERS", 1)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    from_pretrained(AutoConfig, tmp_path)
    assert "its 2 sub-folders are too many to look into" in caplog.text


def test_a_component_of_a_pipeline_has_its_unusual_files_regression(place, tmp_path, written):
    scheduler = pytest.importorskip("diffusers").DDPMScheduler
    scheduler().save_pretrained(tmp_path)
    (tmp_path / "table.yaml").write_text("a: 1")
    uri, storage_options = place(tmp_path, "scheduler")
    of_diffusers(scheduler, uri, storage_options=storage_options)
    assert set(written) == {"scheduler_config.json", "table.yaml"}
