"""Which objects are cached, and under which name."""

from __future__ import annotations

from dataclasses import replace

from each_row import each_row

from streamer.core.cache.folder import identity_of, why_not_cached
from streamer.core.engine.session import SourceObject
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource

HTTP = HttpSource("https://s3.example.com/b/k?sig=CANARY", version='"v1"')
OBJECT = SourceObject("s3://b/k", HTTP, 10, server="https://s3.example.com", stored_version='"v1"', identity="a")
SALT = b"1"


@each_row(
    "source_object",
    [
        OBJECT,
        replace(OBJECT, source=NfsSource("nfs://server/a"), stored_version="10-17-18"),
        replace(OBJECT, source=replace(HTTP, version=None, version_header="x-goog-generation"), stored_version="17"),
        replace(OBJECT, source=replace(HTTP, version=None, version_header=None), stored_version="0a1b"),
        replace(OBJECT, source=replace(HTTP, version_header="Last-Modified")),
        replace(OBJECT, stored_version="Fri, 27 Nov 2026 12:00:00 GMT"),
    ],
)
def test_an_object_whose_version_names_its_bytes_is_cached(source_object):
    assert why_not_cached(source_object) is None


@each_row(
    ("source_object", "reason"),
    [
        (replace(OBJECT, source=FileSource("/a")), ""),
        (replace(OBJECT, size_bytes=0), ""),
        (replace(OBJECT, source=PythonSource(lambda *_: 0)), "Python"),
        (replace(OBJECT, stored_version=None), "no version"),
        (replace(OBJECT, identity=""), "another process"),
        (replace(OBJECT, source=replace(HTTP, version=None)), "no version with its address"),
        (replace(OBJECT, is_settled=False), "weak ETag"),
    ],
)
def test_any_other_object_is_not_shared_and_the_reason_is_reported(source_object, reason):
    told = why_not_cached(source_object)
    assert told is not None
    assert reason in told
    assert bool(told) == bool(reason)


def test_server_object_version_and_size_make_the_name():
    identity = identity_of(OBJECT, SALT)
    others = [
        replace(identity, server="https://other.example.com"),
        identity_of(replace(OBJECT, identity="b"), SALT),
        identity_of(OBJECT, b"2"),
        replace(identity, version='"v2"'),
        replace(identity, size_bytes=11),
    ]
    assert len({each.key for each in [identity, *others]}) == 6
    assert identity.key == identity_of(OBJECT, SALT).key


def test_without_a_name_of_its_store_the_server_is_that_of_the_url_and_no_secret_is_in_it():
    identity = identity_of(replace(OBJECT, server="", identity="DIGEST"), SALT)
    assert identity.server == "s3.example.com"
    assert not any(secret in repr(identity) for secret in ("CANARY", "DIGEST"))
