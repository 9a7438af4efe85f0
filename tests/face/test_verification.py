"""How ``verify`` is chosen, and the checksums of the engine as Python sees them."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import streamer
from streamer import _native
from streamer.backends.posix.store import PosixStore
from streamer.core.errors import OptionError
from streamer.core.options.arguments import chosen_verification
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest, digest_of_base64
from streamer.core.store.sources import ObjectInfo
from streamer.core.verification.strategy import VerifyOption


@pytest.mark.parametrize(
    ("given", "environment", "chosen"),
    [
        (None, {}, "off"),
        (None, {"STREAMER_VERIFY": ""}, "off"),
        (None, {"STREAMER_VERIFY": "auto"}, "auto"),
        ("manifest", {"STREAMER_VERIFY": "auto"}, "manifest"),
        ("off", {"STREAMER_VERIFY": "auto"}, "off"),
    ],
)
def test_the_argument_goes_before_the_environment(
    given: VerifyOption, environment: dict[str, str], chosen: str
) -> None:
    assert chosen_verification(given, environment) == chosen


@pytest.mark.parametrize(("given", "environment"), [("yes", {}), (True, {}), (None, {"STREAMER_VERIFY": "1"})])
def test_an_unknown_word_is_refused(given: VerifyOption, environment: dict[str, str]) -> None:
    with pytest.raises(OptionError, match='"auto", "manifest" or "off"'):
        chosen_verification(given, environment)


def test_the_checksums_have_their_published_values() -> None:
    assert _native.crc("crc32", b"123456789") == zlib.crc32(b"123456789")
    assert _native.crc("crc32c", b"123456789") == 0xE3069283
    assert _native.crc("crc64nvme", b"123456789") == 0xAE8B14860A799888
    assert (
        _native.crc_combine("crc32c", _native.crc("crc32c", b"1234"), _native.crc("crc32c", b"56789"), 5) == 0xE3069283
    )
    with pytest.raises(ValueError, match="no such checksum"):
        _native.crc("md5", b"")


def test_a_digest_as_stores_write_it() -> None:
    digest = digest_of_base64("crc32c", "4waSgw==", 9)
    assert isinstance(digest, ObjectDigest)
    assert (digest.parts[0].end, digest.parts[0].value) == (9, "e3069283")


@pytest.mark.parametrize("text", ["", "4waSgw", "4waSgw==-3", "!!!!", "4waSgwAA"])
def test_a_malformed_digest_is_none(text: str) -> None:
    assert isinstance(digest_of_base64("crc32c", text, 9), NoDigest)


# --- an object with checksums of its parts, as a multipart upload to S3 leaves it: compared part by part ------------

WEIGHTS = {f"layer.{number}": torch.arange(number * 9973.0) for number in range(12)}
SHARD = save(WEIGHTS)


def digest_of(data: bytes, part_bytes: int, algorithm: str) -> ObjectDigest:
    digits = 16 if algorithm == "crc64nvme" else 8
    parts = [
        PartDigest(
            min(begin + part_bytes, len(data)),
            f"{_native.crc(algorithm, data[begin : begin + part_bytes]):0{digits}x}",
        )
        for begin in range(0, len(data), part_bytes)
    ]
    return ObjectDigest(algorithm, tuple(parts))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, ObjectDigest | NoDigest]:
    """What the store of local files says of ``m.safetensors``; set by the test."""
    answers: dict[str, ObjectDigest | NoDigest] = {}

    # A class of its own: Python remembers of a class that it once fitted a protocol.
    class DigestingPosixStore(PosixStore):
        def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
            return answers[Path(info.path).name]

    monkeypatch.setattr("streamer.backends.posix.store.PosixStore", DigestingPosixStore)
    return answers


@pytest.mark.parametrize("algorithm", ["crc32", "crc32c", "crc64nvme"])
@pytest.mark.parametrize("part_bytes", [100, 65_537, 1_000_000, 1 << 30])  # 100: the header alone is several parts
def test_parts_of_any_size_are_compared(
    part_bytes: int, algorithm: str, kept: dict[str, ObjectDigest | NoDigest], tmp_path: Path
) -> None:
    (tmp_path / "m.safetensors").write_bytes(SHARD)
    kept["m.safetensors"] = digest_of(SHARD, part_bytes, algorithm)
    options = streamer.Options(block_bytes=128 << 10)
    with streamer.stream(tmp_path, verify="auto", options=options) as stream:
        loaded = dict(stream)
    assert all(torch.equal(loaded[name], WEIGHTS[name]) for name in WEIGHTS)
    count = len(kept["m.safetensors"].parts)  # type: ignore[union-attr]
    assert stream.report.verified[0].verified_by == (f"{algorithm} of {count} parts" if count > 1 else algorithm)


@pytest.mark.parametrize("at", [20, 50_000, 1_234_567, len(SHARD) - 1])
def test_the_wrong_part_is_reported(at: int, kept: dict[str, ObjectDigest | NoDigest], tmp_path: Path) -> None:
    flipped = SHARD[:at] + bytes([SHARD[at] ^ 1]) + SHARD[at + 1 :]
    kept["m.safetensors"] = digest_of(flipped, 65_536, "crc32c")  # of other bytes than those that lie there
    (tmp_path / "m.safetensors").write_bytes(SHARD)
    with pytest.raises(streamer.ChecksumError) as caught:
        streamer.load(tmp_path, verify="auto")
    begin = at // 65_536 * 65_536
    assert caught.value.byte_range == (begin, min(begin + 65_536, len(SHARD)))


def test_each_object_of_a_checkpoint_is_reported(kept: dict[str, ObjectDigest | NoDigest], tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.safetensors").write_bytes(save({name: torch.arange(5000.0)}))
    kept["a.safetensors"] = digest_of((tmp_path / "a.safetensors").read_bytes(), 1 << 20, "crc32c")
    kept["b.safetensors"] = NoDigest("it has none")
    kept["c.safetensors"] = digest_of((tmp_path / "c.safetensors").read_bytes(), 1 << 20, "crc32c")
    with streamer.stream(tmp_path, names=["a", "b"], verify="auto") as stream:
        dict(stream)
    reported = [(each.verified_by, each.remark) for each in stream.report.verified]
    assert reported == [("crc32c", None), (None, "it has none"), (None, "nothing of it was read")]


def test_nothing_is_reported_as_verified_before_the_end(
    kept: dict[str, ObjectDigest | NoDigest], tmp_path: Path
) -> None:
    (tmp_path / "m.safetensors").write_bytes(SHARD)
    kept["m.safetensors"] = digest_of(SHARD, 1 << 30, "crc32c")
    with streamer.stream(tmp_path, verify="auto") as stream:
        for _ in stream:
            reported = stream.report.verified[0]
            assert reported.verified_by is None or stream.report.is_complete
    assert stream.report.is_verified


MD5 = hashlib.md5(SHARD).hexdigest()
OTHER = hashlib.md5(b"the md5 of each part").hexdigest()


@pytest.mark.parametrize(
    ("etag", "value", "reason"),
    [
        (None, f"{OTHER}-6", "its md5 is one of the 6 parts of an upload, not of the whole"),
        (f'"{OTHER}-6"', f"{OTHER}-6", "its md5 is one of the 6 parts of an upload, not of the whole"),
        (f'"{OTHER.upper()}-6"', OTHER, "its md5 is one of the 6 parts of an upload, not of the whole"),
        (f'W/"{OTHER}-1"', OTHER, "its md5 is one of the 1 parts of an upload, not of the whole"),
        (f'"{OTHER}-6"', MD5, None),  # of the whole, from elsewhere
        (f'"{MD5}"', MD5, None),
    ],
)
def test_a_digest_that_cannot_be_of_the_whole_is_doubted_and_not_believed(
    etag: str | None,
    value: str,
    reason: str | None,
    kept: dict[str, ObjectDigest | NoDigest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "m.safetensors").write_bytes(SHARD)
    kept["m.safetensors"] = ObjectDigest("md5", (PartDigest(len(SHARD), value),))
    monkeypatch.setattr(
        "streamer.backends.posix.store._info",
        lambda path, status: ObjectInfo(path, path, status.st_size, etag),
    )
    with streamer.stream(tmp_path, verify="auto") as stream:
        loaded = dict(stream)
    assert all(torch.equal(loaded[name], WEIGHTS[name]) for name in WEIGHTS)
    (reported,) = stream.report.verified
    assert (reported.verified_by, reported.remark) == ("md5" if reason is None else None, reason)


@pytest.mark.parametrize(
    "reported",
    [
        None,
        "e3069283",
        ObjectDigest("crc32c", ()),
        ObjectDigest("adler32", (PartDigest(len(SHARD), "e3069283"),)),
        ObjectDigest("crc32c", (PartDigest(len(SHARD) - 1, "e3069283"),)),
        ObjectDigest("crc32c", (PartDigest(len(SHARD), "E3069283"),)),
        ObjectDigest("crc32c", (PartDigest(9, "e3069283"), PartDigest(9, "e3069283"), PartDigest(len(SHARD), "0" * 8))),
        ObjectDigest("md5", (PartDigest(9, "0" * 32), PartDigest(len(SHARD), "0" * 32))),
    ],
)
def test_a_store_with_nonsensical_answers_is_named(
    reported: Any, kept: dict[str, ObjectDigest | NoDigest], tmp_path: Path
) -> None:
    (tmp_path / "m.safetensors").write_bytes(SHARD)
    kept["m.safetensors"] = reported
    with pytest.raises(streamer.PluginError, match="digest"):
        streamer.load(tmp_path, verify="auto")
