"""Which loggers of other libraries write a secret at DEBUG: those that docs/security.md names, and no others."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from servers.scripted_http import ScriptedServer

import streamer

pytestmark = pytest.mark.usefixtures("short_pauses")

PAGE = (Path(__file__).resolve().parents[2] / "docs/security.md").read_text()
ROWS = [line.split("|")[1] for line in PAGE.splitlines() if "::test_a_logger_of_the_page_logs_one_line" in line]
NAMED = sorted({name for row in ROWS for name in re.findall(r"`([\w.]+)`", row)})
QUIET = re.search(r"setLevel\(logging\.INFO\)` for (.*?) \(", PAGE, re.DOTALL)
CANARY = "C4n4ryS3cr3tXyz"
CANARY_KEY = base64.b64encode(CANARY.encode() * 3).decode()  # Azure's keys are written in base64
FORMS = (CANARY, CANARY_KEY[:24], base64.b64encode(f"user:{CANARY}".encode()).decode())
S3 = {"key": "AKIDEXAMPLE", "secret": CANARY, "token": CANARY}
AZURE = f"AccountName=acct;AccountKey={CANARY_KEY};BlobEndpoint="
HASTY = streamer.Options(max_attempts=1, block_deadline_s=0.5)

ASKED: dict[str, Any] = {
    "s3": lambda at: ("s3://bucket/a.safetensors", {**S3, "endpoint_url": at}),
    "s3 by botocore's client": lambda at: ("s3://bucket/a", {**S3, "endpoint_url": at, "config_kwargs": {}}),
    "s3 in a cache": lambda at: ("simplecache::s3://bucket/a.safetensors", {"s3": {**S3, "endpoint_url": at}}),
    "s3 in the URL": lambda at: (f"simplecache::s3://AKID:{CANARY}@bucket/a", {"s3": {"endpoint_url": at}}),
    "gs": lambda at: ("gs://bucket/a.safetensors", {"token": f"ya29.{CANARY}", "endpoint_url": at}),
    "gs in a cache": lambda at: (
        "simplecache::gs://bucket/a.safetensors",
        {"gs": {"token": {"token": f"ya29.{CANARY}", "type": "authorized_user"}, "endpoint_url": at}},
    ),
    "az": lambda at: ("az://container/a.safetensors", {"connection_string": f"{AZURE}{at}/acct"}),
    "az in a cache": lambda at: (
        "simplecache::az://container/a.safetensors",
        {"az": {"connection_string": f"{AZURE}{at}/acct"}},
    ),
    "hf": lambda at: ("hf://owner/repo/a.safetensors", {"token": f"hf_{CANARY}", "endpoint": at}),
    "http user": lambda at: (f"{at.replace('//', f'//user:{CANARY}@')}/a.safetensors", None),
    "http query": lambda at: (f"{at}/a.safetensors?X-Amz-Signature={CANARY}", None),
    "http header": lambda at: (f"{at}/a.safetensors", {"headers": {"Authorization": f"Bearer {CANARY}"}}),
    "http in a cache": lambda at: (f"simplecache::{at.replace('//', f'//user:{CANARY}@')}/a.safetensors", None),
    "memory": lambda _: (f"memory://user:{CANARY}@host/absent.safetensors", None),
    "sftp": lambda _: (f"sftp://user:{CANARY}@127.0.0.1:9/a.safetensors", None),
}


@pytest.fixture
def telling(monkeypatch, caplog):
    """Names of the loggers that wrote a secret while every case of `ASKED` was refused."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def run() -> set[str]:
        caplog.set_level(logging.DEBUG)
        for asked in ASKED.values():
            with ScriptedServer(b"", lambda _, answer: answer.become(403, CANARY.encode())) as server:
                uri, options = asked(server.url.removesuffix("/object"))
                with pytest.raises(streamer.StreamerError):
                    streamer.load(uri, storage_options=options, options=HASTY, progress=False)
        return {
            record.name
            for record in caplog.records
            if any(form in f"{record.getMessage()} {record.exc_text}" for form in FORMS)
        }

    return run


def test_no_other_logger_logs_a_secret(telling):
    assert telling() - set(NAMED) == set()


def test_a_logger_of_the_page_logs_one_line(telling):
    assert len(NAMED) > 3
    assert set(NAMED) - telling() == set()


def test_at_info_they_tell_nothing(telling):
    assert QUIET
    quieted = [logging.getLogger(name) for name in re.findall(r"`([\w.]+)`", QUIET[1])]
    levels = [logger.level for logger in quieted]
    for logger in quieted:
        logger.setLevel(logging.INFO)
    try:
        assert telling() == set()
    finally:
        for logger, level in zip(quieted, levels, strict=True):
            logger.setLevel(level)
