"""What the tests of the Hub share."""

from __future__ import annotations

import os

import pytest
from huggingface_hub import constants


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch, tmp_path):
    for name in os.environ:
        if name.startswith(("HF_", "HUGGING")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
