"""``docs/errors.md`` shows a real message of every class: each is provoked here and must be there, word for word."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from faults.catalogue import FAULTS
from faults.server import FaultServer
from gpu.fake_devices import attached_fake_gpu, compile_fake
from group_ranks import second_rank
from safetensors.torch import save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer.core.engine import plan
from streamer.plugins import registry

PAGE = Path(__file__).resolve().parents[2] / "docs/errors.md"
FAST = streamer.Options(
    max_attempts=3, first_byte_timeout_s=0.3, stall_timeout_s=0.3, block_deadline_s=1.0, block_bytes=64 << 10
)


def normalized(message: str, folder: Path) -> str:
    """Replace what differs from run to run."""
    message = message.replace(str(folder), "/models")
    message = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9000", message)
    message = re.sub(r"bytes \d+-\d+ of 240148", "bytes 65536-131071 of 240148", message)  # any block may be the first
    if "has been failing" in message or "for this object alone" in message:
        # Which block is given up first, after how many attempts of its own, and whether that is more than one
        message = re.sub(r"for [\d.]+ s and \d+ requests?", "for 120.2 s and 46 requests", message)
        message = re.sub(r", \d+ attempts in [\d.]+ s", "", message)
    message = re.sub(r"\d+ attempts", "3 attempts", message)  # a busy machine may look at the object once more
    return re.sub(r"in \d+\.\d s", "in 0.1 s", message)


class Provoked:
    """A way to each error; `folder` holds a good checkpoint at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "a.safetensors"
        save_file({"weight": torch.arange(60_000.0), "bias": torch.zeros(3)}, self.file)

    def through(self, fault: str, **changes: Any) -> None:
        """Load through a fault that stays, past the header."""
        with FaultServer(self.folder, lambda asked: FAULTS[fault] if asked.number > 0 else None) as server:
            url = f"s3://{self.folder.name}/a.safetensors"
            streamer.load(url, storage_options=server.storage_options(), options=FAST, progress=False)

    def usage_error(self) -> None:
        streamer.load([])

    def option_error(self) -> None:
        streamer.Options(max_attempts=0)

    def unknown_scheme_error(self) -> None:
        streamer.load("s4://bucket/model")

    def out_of_memory_error(self) -> None:
        with (
            patch.object(plan, "memory_bytes", lambda: 100_000),
            patch.object(plan, "swap_bytes", lambda: 0),
        ):
            streamer.load(self.file)

    def device_error(self) -> None:
        with attached_fake_gpu(compile_fake("fake_cuda", self.folder)) as gpu:  # no GPU is here, and none is needed
            gpu.fail("cuEventQuery", 719)
            streamer.load(self.file, device="cuda", options=FAST, progress=False)

    def unknown_device_error(self) -> None:
        streamer.load(self.file, device="gpu")

    def unknown_tensor_error(self) -> None:
        streamer.load(self.file, names="wieght")

    def tensor_index_error(self) -> None:
        with streamer.open(self.file) as checkpoint:
            checkpoint.get_slice("weight")[60_000]

    def target_error(self) -> None:
        streamer.load_into(self.file, {"weight": torch.zeros(7), "bias": torch.zeros(3)})

    def encryption_key_error(self) -> None:
        streamer.save({"weight": torch.zeros(3)}, self.folder / "secret.safetensors", key=bytes(range(32)))
        streamer.load(self.folder / "secret.safetensors")

    def tampered_error(self) -> None:
        secret = self.folder / "secret.safetensors"
        streamer.save({"weight": torch.zeros(3)}, secret, key=bytes(range(32)))
        content = bytearray(secret.read_bytes())
        content[-33] ^= 1  # the last byte before two tags
        secret.write_bytes(content)
        streamer.load(secret, key=bytes(range(32)))

    def unsupported_dtype_error(self) -> None:
        header = json.dumps({"weight": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
        self.file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(3))
        streamer.load(self.file, framework="np")

    def format_error(self) -> None:
        save_file({"weight": torch.zeros(2)}, self.folder / "b.safetensors")
        streamer.load(self.folder)

    def header_error(self) -> None:
        self.file.write_bytes(struct.pack("<Q", 2) + b"[]")
        streamer.load(self.file)

    def shard_index_error(self) -> None:
        index = {"weight_map": {"weight": "../elsewhere.safetensors"}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        streamer.load(self.folder)

    def manifest_error(self) -> None:
        streamer.write_manifest(self.file)
        save_file({"weight": torch.arange(60_000.0), "bias": torch.zeros(7)}, self.file)
        streamer.load(self.file, verify="manifest")

    def checksum_error(self) -> None:
        streamer.write_manifest(self.file)
        data = bytearray(self.file.read_bytes())
        data[100_000] ^= 1
        self.file.write_bytes(data)
        streamer.load(self.file, verify="manifest")

    def storage_error(self) -> None:
        os.mkfifo(self.folder / "pipe.safetensors")
        streamer.load(self.folder / "pipe.safetensors")

    def object_not_found_error(self) -> None:
        streamer.load(self.folder / "missing.safetensors")

    def missing_shard_error(self) -> None:
        index = {"weight_map": {"weight": "gone.safetensors"}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        streamer.load(self.folder)

    def access_denied_error(self) -> None:
        with ScriptedServer(b"x" * 100, lambda request, answer: answer.become(403)) as server:
            streamer.load(f"{server.url}.safetensors")

    def credentials_error(self) -> None:
        self.through("expired_signature")

    def truncated_error(self) -> None:
        self.file.write_bytes(self.file.read_bytes()[:-1])
        streamer.load(self.file)

    def changed_error(self) -> None:
        self.through("changed_etag")

    def range_response_error(self) -> None:
        self.through("ignored_range")

    def redirect_error(self) -> None:
        self.through("redirect_elsewhere")

    def http_status_error(self) -> None:
        self.through("http_500")

    def connect_error(self) -> None:
        self.through("reset_before_the_answer")

    def tls_error(self) -> None:
        with ScriptedServer(b"x" * 100, with_tls=True) as server:
            streamer.load(f"{server.url}.safetensors")

    def transfer_timeout_error(self) -> None:
        self.through("silence")

    def plugin_error(self) -> None:
        class Point:
            name, value, dist = "acme", "acme_store", type("Dist", (), {"name": "acme-store", "version": "1.5"})()

            def load(self) -> object:
                raise ModuleNotFoundError("No module named 'acme_client'")

        registry.open_store("acme://shelf/model", entry_points=[Point()])  # type: ignore[list-item]

    def group_error(self) -> None:
        with second_rank(str(self.file), names="absent") as group:
            streamer.load(self.file, group=group)

    def load_cancelled_error(self) -> None:
        with streamer.stream(self.file, progress=False) as tensors:
            tensors.close()
            list(tensors)

    def engine_error(self) -> None:
        reading, writing = os.pipe()
        with streamer.stream(self.file, progress=False) as tensors:
            child = os.fork()
            if child == 0:
                try:
                    list(tensors)
                except streamer.EngineError as error:
                    os.write(writing, str(error).encode())
                os._exit(0)
            os.waitpid(child, 0)
            os.close(writing)
            raise streamer.EngineError(os.read(reading, 1000).decode())


def way_to(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("plug_in", "plugin")


def sections() -> dict[str, str]:
    """The page, by class."""
    parts = re.split(r"^## `(\w+)`\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


NAMES = [name for name in streamer.__all__ if name.endswith("Error")]
RAISED = [name for name in NAMES if hasattr(Provoked, way_to(name))]


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_message_of_a_class_is_on_the_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_DISABLED_PLUGINS", "streamer-stores")  # of this repository, but not of this page
    folder = tmp_path / "llama"
    folder.mkdir()
    provoke: Callable[[], None] = getattr(Provoked(folder), way_to(name))
    with pytest.raises(getattr(streamer, name)) as caught:
        provoke()
    assert type(caught.value).__name__ == name
    assert normalized(str(caught.value), tmp_path) in normalized(sections()[name], tmp_path)


def test_every_class_is_provoked_or_said_not_to_be_raised() -> None:
    assert set(NAMES) - set(RAISED) == {"StreamerError"}


def test_every_class_has_a_section_with_its_meaning_and_a_fix() -> None:
    assert set(sections()) == set(NAMES)
    for name in RAISED:
        assert "**Fix.**" in sections()[name], name
