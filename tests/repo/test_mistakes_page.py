"""``docs/errors.md`` ends with a table of mistakes and their messages: each mistake is made here."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from servers.kept_ports import KeptPorts
from servers.scripted_http import ScriptedServer

import streamer

PAGE = Path(__file__).resolve().parents[2] / "docs/errors.md"
SHARD = "model-0000{}-of-00004.safetensors"


class Mistakes:
    """A folder of models, and a method for each mistake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "llama"
        self.folder.mkdir()
        self.file = self.folder / "model.safetensors"
        save_file({"model.layers.0.weight": torch.zeros(2), "model.layers.0.bias": torch.zeros(2)}, self.file)

    def in_place_of_a_file(self, data: bytes) -> None:
        self.file.write_bytes(data + bytes(100))
        streamer.load(self.file)

    def a_name_of_the_hub_as_a_path(self) -> None:
        streamer.load("meta-llama/Llama-3.1-8B")

    def a_typo_in_a_path(self) -> None:
        streamer.load(self.folder / "modle.safetensors")

    def a_variable_in_a_path(self) -> None:
        streamer.load("$MODELS/llama")

    def a_url_without_its_slashes(self) -> None:
        streamer.load("s3:bucket/llama")

    def a_deleted_working_directory(self) -> None:
        (self.folder / "gone").mkdir()
        os.chdir(self.folder / "gone")
        (self.folder / "gone").rmdir()
        streamer.load("model.safetensors")

    def a_pickle_in_place_of_a_file(self) -> None:
        self.in_place_of_a_file(b"\x80\x02}q\0(X\x05")

    def a_zip_archive_in_place_of_a_file(self) -> None:
        self.in_place_of_a_file(b"PK\x03\x04\0\0\x08\x08")

    def a_gguf_file_in_place_of_a_file(self) -> None:
        self.in_place_of_a_file(b"GGUF\x03\0\0\0")

    def a_web_page_in_place_of_a_file(self) -> None:
        self.in_place_of_a_file(b"<!DOCTYPE html>")

    def an_unfinished_download(self) -> None:
        self.in_place_of_a_file(bytes(8))

    def an_empty_folder(self) -> None:
        (self.folder / "new").mkdir()
        streamer.load(self.folder / "new")

    def a_folder_of_folders(self) -> None:
        for name in ("fp16", "fp32"):
            (self.folder / "all" / name).mkdir(parents=True)
        streamer.load(self.folder / "all")

    def a_folder_of_another_format(self) -> None:
        self.file.rename(self.folder / "tf_model.h5")
        streamer.load(self.folder)

    def a_folder_without_one_of_its_shards(self) -> None:
        self.file.unlink()
        for number in (1, 2, 4):
            save_file({f"w{number}": torch.zeros(2)}, self.folder / SHARD.format(number))
        streamer.load(self.folder)

    def a_pattern_in_the_middle(self) -> None:
        streamer.load(self.folder / "*" / "model.safetensors")

    def a_pattern_that_matches_nothing(self) -> None:
        streamer.load(self.folder / "*.safetensor")

    def a_typo_in_a_scheme(self) -> None:
        streamer.load("htps://host/model.safetensors")

    def a_user_of_nfs(self) -> None:
        streamer.load("nfs://user:S3CR3T@filer/export/llama")

    def a_host_that_does_not_exist(self) -> None:
        streamer.load("https://nosuch.invalid/model.safetensors")

    def a_port_that_refuses(self) -> None:
        with KeptPorts(1) as (port,):
            streamer.load(f"http://127.0.0.1:{port}/model.safetensors")

    def an_archive_whose_server_refuses(self) -> None:
        with ScriptedServer(b"x", lambda request, answer: answer.become(403)) as server:
            server.answers_head = True
            streamer.load(f"zip://model.safetensors::{server.url}.zip?token=S3CR3T")

    def a_line_end_in_a_header(self) -> None:
        streamer.load("https://host/x", storage_options={"headers": {"Authorization": "Bearer S3CR3T\n"}})

    def another_count_of_storage_options(self) -> None:
        streamer.load(["s3://a/x", "s3://b/x"], storage_options=[{"key": "k"}])

    def a_device_that_torch_lacks(self) -> None:
        streamer.load(self.file, device="mps")

    def a_device_of_another_build_of_torch(self) -> None:
        streamer.load(self.file, device="cuda")

    def no_device(self) -> None:
        streamer.load(self.file, device=None)

    def a_dtype_by_another_name(self) -> None:
        streamer.load(self.file, dtype="bf16")

    def a_target_of_another_dtype(self) -> None:
        target = {name: torch.zeros(2, dtype=torch.float16) for name in streamer.open(self.file).keys()}  # noqa: SIM118
        streamer.load_into(self.file, target)

    def a_typo_in_the_name_of_a_tensor(self) -> None:
        streamer.open(self.file).get_tensor("model.layers.0.wieght")

    def a_module_in_place_of_a_tensor(self) -> None:
        streamer.load(self.file, names="model.layers.0")


MADE = [name for name in vars(Mistakes) if name[0] != "_" and name != "in_place_of_a_file"]


def has_name_server() -> bool:
    """Whether this machine's resolver can say that a name does not exist."""
    try:
        socket.getaddrinfo("nosuch.invalid", 443)
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME
    return False


ELSEWHERE = {
    "a_host_that_does_not_exist": not has_name_server(),
    "a_device_that_torch_lacks": torch.backends.mps.is_available(),
    "a_device_of_another_build_of_torch": torch.version.cuda is not None,
}


def normalized(message: str, folder: Path) -> str:
    """Replace what differs from run to run."""
    message = message.replace(str(folder), "/models").replace(torch.__version__, "2.x")
    message = re.sub(r"; there is no CUDA driver here: .*\(CUDA_ERROR_NOT_FOUND\)", "", message)
    message = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9000", message)
    return re.sub(r"in \d+\.\d s", "in 0.8 s", message)


def rows() -> dict[str, str]:
    """The table, by the name of the mistake."""
    table = PAGE.read_text().partition("## Mistakes")[2]
    found = re.findall(r"^\| (.+?) \| `(.+)` \|$", table, flags=re.MULTILINE)
    return {re.sub(r"\W+", "_", name.lower()): line for name, line in found}


@pytest.mark.parametrize("name", MADE)
def test_the_line_of_a_mistake_is_on_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_pauses: None
) -> None:
    if ELSEWHERE.get(name):
        pytest.skip("on this machine the mistake is another")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMER_DISABLED_PLUGINS", "streamer-stores")  # of this repository, but not of this page
    make: Callable[[], Any] = getattr(Mistakes(tmp_path), name)
    with pytest.raises(streamer.StreamerError) as caught:
        make()
    line = normalized(str(caught.value), tmp_path)
    assert line == rows()[name]
    assert "S3CR3T" not in line
    assert "\n" not in line


def test_every_mistake_of_the_page_is_made() -> None:
    assert list(rows()) == MADE
