"""How ``verify`` is chosen, and the checksums of the engine as Python sees them."""

from __future__ import annotations

import zlib

import pytest

from streamer import _native
from streamer.core.checkpoint.verification import ByManifest, ByStore, Strategy, VerifyOption, strategy_of
from streamer.core.errors import OptionError
from streamer.core.store.digests import NoDigest, ObjectDigest, digest_of_base64


@pytest.mark.parametrize(
    ("given", "environment", "strategy"),
    [
        (None, {}, type(None)),
        (None, {"STREAMER_VERIFY": ""}, type(None)),
        (None, {"STREAMER_VERIFY": "auto"}, ByStore),
        ("manifest", {"STREAMER_VERIFY": "auto"}, ByManifest),
        ("off", {"STREAMER_VERIFY": "auto"}, type(None)),
    ],
)
def test_the_argument_goes_before_the_environment(
    given: VerifyOption, environment: dict[str, str], strategy: type[Strategy | None]
) -> None:
    assert type(strategy_of(given, environment)) is strategy


@pytest.mark.parametrize(("given", "environment"), [("yes", {}), (True, {}), (None, {"STREAMER_VERIFY": "1"})])
def test_an_unknown_word_is_refused(given: VerifyOption, environment: dict[str, str]) -> None:
    with pytest.raises(OptionError, match='"auto", "manifest" or "off"'):
        strategy_of(given, environment)


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
