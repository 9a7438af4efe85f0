"""``docs/encryption.md`` is true: its examples run, and its test vector is what the product reads."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encryption_reference import divided, encrypted, shard_key
from pages import blocks, run_examples, text_of

import streamer

PAGE = text_of("docs/encryption.md")
EXAMPLES = blocks("docs/encryption.md")
VECTOR = dict(re.findall(r"^\| (.*?) \| `([0-9a-f]+)` \|$", PAGE, flags=re.MULTILINE))


class Kms:
    """Answers as boto3's client of AWS KMS; it wraps nothing."""

    def generate_data_key(self, KeyId: str, KeySpec: str) -> dict[str, Any]:  # noqa: N803 (boto3's names)
        assert KeySpec == "AES_256"
        return {"Plaintext": bytes(range(32)), "CiphertextBlob": b"wrapped", "KeyId": KeyId}

    def decrypt(self, KeyId: str, CiphertextBlob: bytes) -> dict[str, Any]:  # noqa: N803
        assert (KeyId, CiphertextBlob) == ("alias/weights", b"wrapped")
        return {"Plaintext": bytes(range(32))}


def test_the_examples_run(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 3
    names: dict[str, Any] = {"target": str(tmp_path / "model"), "bound": str(tmp_path / "bound"), "kms": Kms()}
    run_examples("docs/encryption.md", names)
    assert torch.equal(names["tensors"]["weight"], names["model"].weight)
    assert torch.equal(names["rows"], names["model"].weight[100:110])
    streamer.save(names["model"], tmp_path / "wrapped", key=names["OfKms"]())
    loaded = streamer.load(tmp_path / "wrapped", key=names["OfKms"]())
    assert torch.equal(loaded["bias"], names["model"].bias)


@pytest.fixture
def vector() -> bytes:
    parameters = {
        "version": 1,
        "cipher": "AES-256-GCM",
        "key_id": VECTOR["key id"],
        "checkpoint": bytes(range(16)).hex(),
        "shard": 1,
        "shards": 1,
        "salt": bytes(range(32, 64)).hex(),
        "piece_bytes": 4096,
        "hides_names": False,
    }
    tensors = {"a": ("U8", [3], b"abc"), "b": ("U8", [4098], bytes(i % 251 for i in range(4098)))}
    return encrypted(tensors, bytes(range(32)), parameters)


def test_the_vector_is_what_the_page_shows(vector: bytes) -> None:
    outer = divided(vector)
    assert sha256(outer.header).hexdigest() == VECTOR["`H(header)`"]
    assert shard_key(bytes(range(32)), outer.parameters, outer.header).hex() == VECTOR["key of the file"]
    assert vector[4096:4099].hex() == VECTOR["`a`, encrypted"]
    tags = vector[outer.tensors[-1][1] :].hex()
    assert tags == "".join(VECTOR[f"tag {name}"] for name in ("0", "1 (`a`)", "2", "3"))
    assert sha256(vector).hexdigest() == VECTOR["`H(file)`, 8261 bytes"]


def test_the_product_reads_the_vector(vector: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(vector)
    loaded = streamer.load(tmp_path, key=bytes(range(32)), framework="np")
    assert loaded["a"].tobytes() == b"abc"
    assert np.array_equal(loaded["b"], np.arange(4098) % 251)
