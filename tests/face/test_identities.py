"""What decides the bytes of an object is in every key: for sharing, in the cache, and for a pull.

The property, on every storage: two loads that differ in one of query, path, login, header, endpoint, version and
redirect have different identities. Two loads that differ only in a signature or a renewed token have the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from each_row import each_row
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from servers.background import served

import streamer
from streamer._pull.pull import pull
from streamer._pull.record import PullArguments
from streamer.core.engine.session import SourceObject
from streamer.core.node.share import key_of
from streamer.core.store.identities import identity_of, stable_url
from streamer.core.store.sources import ObjectInfo
from streamer.plugins.registry import enabled, open_checked_store

COMMIT = "a" * 40
ELSEWHERE = "http://127.0.0.1:9"
S3 = {"key": "k", "secret": "s", "endpoint_url": ELSEWHERE}
AMAZON = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "eu-west-1"}}
AZURE = {"account_name": "account", "account_key": "Q0FOQVJZ"}
HEADERS = {"headers": {"Authorization": "Bearer 1"}}
HTTP = "https://host.test/get/a"
Place = tuple[str, Mapping[str, Any]]

# Each row: a URL and options; others that name other bytes; others that name the same.
ROWS: dict[str, tuple[Place, list[Place], list[Place]]] = {
    "http": (
        (f"{HTTP}?file=a", {}),
        [
            (f"{HTTP}?file=b", {}),
            (HTTP, {}),
            (f"{HTTP}b?file=a", {}),
            ("https://host.test:444/get/a?file=a", {}),
            ("https://user:password@host.test/get/a?file=a", {}),
            ("https://user:other@host.test/get/a?file=a", {}),
            (f"{HTTP}?file=a", HEADERS),
            (f"{HTTP}?file=a", {"headers": {"X-File": "a"}}),
            (f"{HTTP}?file=a", {"cookies": {"user": "a"}}),
            (f"{HTTP}?file=a&sv=1", {}),
            *(
                (f"{HTTP}?file=a&{name}=1", {})
                for name in ("sig", "signature", "key-pair-id", "x-goog-signature", "expires")
            ),
        ],
        [(f"{HTTP}?file=a&X-Amz-Date=1&X-Amz-Signature=1", {}), (f"{HTTP}?file=a&sv=1&se=1&sig=1", {})],
    ),
    "s3": (
        ("s3://bucket/a", S3),
        [
            ("s3://bucket/b", S3),
            ("s3://other/a", S3),
            ("s3://bucket/a?versionId=1", S3),
            ("s3://bucket/a", {**S3, "key": "other"}),
            ("s3://bucket/a", {**S3, "token": "temporary"}),
            ("s3://bucket/a", {"anon": True, "endpoint_url": ELSEWHERE}),
            ("s3://bucket/a", {**S3, "endpoint_url": "http://127.0.0.1:8"}),
            ("s3://bucket/a", AMAZON),
        ],
        [("s3a://bucket/a", S3), ("s3://bucket/a", {**S3, "secret": "rotated"})],
    ),
    "amazon": (
        ("s3://bucket/a", AMAZON),
        [("s3://bucket/b", AMAZON)],
        [("s3://bucket/a", {**AMAZON, "key": "ASIA", "token": "1"}), ("s3://bucket/a", {**AMAZON, "anon": True})],
    ),
    "gs": (
        ("gs://bucket/a", {"token": "anon", "endpoint_url": ELSEWHERE}),
        [
            ("gs://bucket/b", {"token": "anon", "endpoint_url": ELSEWHERE}),
            ("gs://bucket/a", {"token": "anon", "endpoint_url": "http://127.0.0.1:8"}),
            ("gs://bucket/a#7", {"token": "anon", "endpoint_url": ELSEWHERE}),
            ("gs://bucket/a", {"token": "anon"}),
        ],
        [("gcs://bucket/a", {"token": "anon", "endpoint_url": ELSEWHERE})],
    ),
    "az": (
        ("az://container/a", AZURE),
        [
            ("az://container/b", AZURE),
            ("az://other/a", AZURE),
            ("az://container/a", {**AZURE, "account_name": "other"}),
            ("az://container/a", {**AZURE, "account_host": "127.0.0.1:9"}),
        ],
        [
            ("abfss://container@account.dfs.core.windows.net/a", {"account_key": AZURE["account_key"]}),
            ("az://container/a", {"account_name": "account", "sas_token": "sv=1&sig=1"}),
        ],
    ),
    "azurite": (
        ("az://container/a", {**AZURE, "account_host": "127.0.0.1:9"}),
        [
            ("az://container/a", {**AZURE, "account_host": "127.0.0.1:8"}),
            ("az://container/a", {"account_name": "account", "account_host": "127.0.0.1:9", "sas_token": "sig=1"}),
        ],
        [],
    ),
    "hf": (
        (f"hf://owner/name@{COMMIT}/a", {"endpoint": ELSEWHERE, "token": "hf_1"}),
        [
            (f"hf://owner/name@{COMMIT}/b", {"endpoint": ELSEWHERE, "token": "hf_1"}),
            (f"hf://owner/other@{COMMIT}/a", {"endpoint": ELSEWHERE, "token": "hf_1"}),
            (f"hf://datasets/owner/name@{COMMIT}/a", {"endpoint": ELSEWHERE, "token": "hf_1"}),
            (f"hf://owner/name@{COMMIT}/a", {"endpoint": ELSEWHERE, "token": "hf_2"}),
            (f"hf://owner/name@{COMMIT}/a", {"endpoint": ELSEWHERE, "token": False}),
            (f"hf://owner/name@{COMMIT}/a", {"endpoint": "https://huggingface.co", "token": "hf_1"}),
        ],
        [],
    ),
    "hub": (
        (f"hf://owner/name@{COMMIT}/a", {"endpoint": "https://huggingface.co", "token": "hf_1"}),
        [(f"hf://owner/name@{'b' * 40}/a", {"endpoint": "https://huggingface.co", "token": "hf_1"})],
        [(f"hf://owner/name@{COMMIT}/a", {"endpoint": "https://huggingface.co", "token": "hf_2"})],
    ),
}
PAIRS = [
    (base, other, is_same)
    for base, others, same in ROWS.values()
    for other, is_same in [*((each, False) for each in others), *((each, True) for each in (base, *same))]
]


@pytest.fixture(scope="module", autouse=True)
def _no_login(tmp_path_factory):
    """Find no login of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, str(tmp_path_factory.mktemp("home") / "none"))
        yield


def identity(place: Place) -> str:
    uri, options = place
    store = open_checked_store(uri, dict(options), None, enabled(uris=[uri]))
    version = COMMIT if uri.startswith("hf") else '"v1"'
    if "@" in uri and uri.startswith("hf"):
        version = uri.partition("@")[2].partition("/")[0]
    return identity_of(store, ObjectInfo(store.root, "shown", 10, version))


@settings(max_examples=len(PAIRS), deadline=None)
@given(st.sampled_from(PAIRS))
def test_what_decides_the_bytes_is_in_the_identity_on_every_storage(pair):
    base, other, is_same = pair
    one, two = identity(base), identity(other)
    assert one
    assert two
    assert (one == two) == is_same
    shared = [key_of([SourceObject("shown", None, 10, "v", identity=each)]) for each in (one, two)]  # type: ignore[arg-type]
    assert (shared[0] == shared[1]) == is_same


FILES = {name: save({"a": np.full(1000, number, dtype=np.float32)}) for number, name in enumerate("ab")}


class _Files(BaseHTTPRequestHandler):
    """Chooses one of two files by query, path, header, cookie, login, redirect, or as a proxy; both have one ETag."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts, headers = urlsplit(self.path), self.headers
        query = parse_qs(parts.query)
        reported = (*query.get("file", []), parts.path[-1], headers.get("X-File", ""), headers.get("Cookie", "")[-1:])
        name = "b" if "b" in reported or headers.get("Authorization") or parts.netloc else "a"
        if parts.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", f"/{name}?X-Amz-Date={self.server.request_count}&X-Amz-Signature=1")  # type: ignore[attr-defined]
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.request_count += 1  # type: ignore[attr-defined]
        data = FILES[name]
        first, _, last = headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        body = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        for key, value in {
            "ETag": '"0123456789abcdef"',
            "Content-Length": str(len(body)),
            "Content-Range": f"bytes {first}-{int(first) + len(body) - 1}/{len(data)}",
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def two_files() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    server.request_count = 0  # type: ignore[attr-defined]
    with served(server):
        yield f"127.0.0.1:{server.server_port}"


OTHERS = {
    "query": ("http://{}/get?file=a", "http://{}/get?file=b", {}),
    "path": ("http://{}/a", "http://{}/b", {}),
    "header": ("http://{}/a", "http://{}/a", {"headers": {"X-File": "b"}}),
    "cookie": ("http://{}/a", "http://{}/a", {"cookies": {"file": "b"}}),
    "login": ("http://{}/a", "http://user:password@{}/a", {}),
    "proxy": ("http://{}/a", "http://{}/a", {"proxy": "http://{}"}),
    "redirect": ("http://{}/moved?file=a", "http://{}/moved?file=b", {}),
}


@each_row("part", OTHERS)
def test_the_cache_holds_no_other_object_of_equal_size_and_version_regression(part, tmp_path):
    of_a, of_b, options = OTHERS[part]
    cached = streamer.Options(cache_dir=tmp_path / "cache")
    with two_files() as host:
        options = {name: each.format(host) if name == "proxy" else each for name, each in options.items()}
        for uri, how, number in [(of_a, {}, 0), (of_b, options, 1), (of_a, {}, 0)]:
            for _ in "12":
                with streamer.stream(uri.format(host), storage_options=how, options=cached, framework="np") as stream:
                    assert dict(stream)["a"].tolist() == [number] * 1000
            assert stream.report.bytes_read == 0  # the second load is read from the cache, also behind a redirect
    assert not any("password" in str(each) for each in (tmp_path / "cache").rglob("*"))


@each_row("part", [each for each in OTHERS if each != "path"])
def test_a_pull_keeps_no_file_of_another_object_regression(part, tmp_path):
    of_a, of_b, options = OTHERS[part]
    with two_files() as host:
        options = {name: each.format(host) if name == "proxy" else each for name, each in options.items()}
        for uri, how, name, kept in [(of_a, {}, "a", 0), (of_a, {}, "a", 1), (of_b, options, "b", 0)]:
            report = pull(
                uri.format(host),
                str(tmp_path / "here"),
                PullArguments(storage_options=how),
                progress=False,
                on_wait=print,
            )
            (file,) = (each for each in (tmp_path / "here").iterdir() if each.is_file())
            assert file.read_bytes() == FILES[name]
            assert report.kept_files == kept
        assert "password" not in (tmp_path / "here/.streamer-pull/complete.json").read_text()


# Comparisons of texts for messages that choose no bytes: what a user removes by name, and the wording of an error.
_HARMLESS = {
    "core/errors.py",
    "backends/azure/store.py",
    "core/cache/contents.py",
    "core/checkpoint/format_catalog.py",
    "src/streamer/_pull/pull.py",
}
_KEY_MAKERS = {"sha256", "pbkdf2_hmac", "digest_of", "seal_of", "key_of"}


def _is_shown(node: ast.AST) -> bool:
    is_uri = isinstance(node, ast.Attribute) and node.attr == "uri"
    return is_uri or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "redact")


def _keys_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is compared, looked up or hashed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and not any(
            isinstance(each, ast.Constant) for each in (node.left, *node.comparators)
        ):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Dict):
            yield from (each for each in node.keys if each is not None)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _KEY_MAKERS:
                yield from node.args


def test_no_text_for_messages_is_a_key():
    root = Path(__file__).parents[2]
    found = []
    for folder in ("src", "core", "backends"):
        for path in sorted((root / folder).rglob("*.py")):
            keys = _keys_in(ast.parse(path.read_text(encoding="utf-8")))
            parts = [part for key in keys for part in ast.walk(key) if _is_shown(part)]
            name = str(path.relative_to(root))
            found += [f"{name}:{each.lineno}" for each in parts if name not in _HARMLESS]  # type: ignore[attr-defined]
    assert found == []


def test_a_name_of_a_file_is_no_signature():
    for url in ("https://host/get?file=a&sv=1&se=2", "https://host/get?signature=a", "https://host/a%3Fsig=1?file=b"):
        assert stable_url(url) == url
