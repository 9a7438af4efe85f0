"""docs/backends.md is true: every error line it shows is provoked here, and every case here is a row of its tables.

What differs from run to run (ports, folders, request ids, seconds, names of accounts) is replaced by `normalised`.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from adlfs import AzureBlobFileSystem
from each_row import each_row
from fsspec.implementations.memory import MemoryFileSystem
from gcsfs.core import GCSFileSystem
from huggingface_hub import constants
from nobody import as_nobody
from s3fs import S3FileSystem
from safetensors.torch import save, save_file
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import STRANGER, HubServer
from servers.nginx import NginxServer
from servers.scripted_http import ScriptedServer
from servers.seaweedfs import SeaweedServer
from servers.sftp import PASSWORD, SftpServer

import streamer
from streamer import _native
from streamer.backends.builtin_storages import EXTRAS
from streamer.backends.client import retry
from streamer.backends.fsspec.instances import close_idle
from streamer.backends.gcs.credentials import LOGINS
from streamer.backends.hf import client as hf_client
from streamer.backends.http import options as http_options
from streamer.backends.nfs.store import BOUNDS
from streamer.plugins.loading import is_builtin
from streamer.plugins.registry import enabled

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/backends.md").read_text(encoding="utf-8")

SHARD = save({"x": torch.arange(5.0)})
SAVED = {"x": torch.arange(5.0)}

# Blocks a library as if it were not installed; in a process of its own, because imports leave traces.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import streamer
try:
    streamer.load(sys.argv[2], framework="np")
except streamer.StreamerError as error:
    print(type(error).__name__, error, end="")
"""


COUNT = """
import json, sys, streamer
print(len(streamer.load(sys.argv[1], storage_options=json.loads(sys.argv[2]), progress=False)))
"""


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line of a table under "Troubleshooting"."""

    section: str
    line: str
    kind: str


def rows_of(page: str) -> list[Row]:
    """Read the tables behind the heading "Troubleshooting", whose first cells are code."""
    rows, section = [], ""
    for text in page.partition("\n## Troubleshooting\n")[2].splitlines():
        section = text.removeprefix("### ") if text.startswith("### ") else section
        if found := re.fullmatch(r"\| (`+)\s?(.+?)\s?\1 \| `?([\w ]+?)`? \| .+ \| .+ \|", text):
            rows.append(Row(section, found[2], found[3]))
    return rows


def normalised(text: str, *replacements: tuple[str, str]) -> str:
    """Replace what differs from run to run."""
    for old, new in replacements:
        text = text.replace(old, new)
    for pattern, new in (
        (r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
        (r"\bacct[0-9a-f]{12}\b", "ACCOUNT"),
        (r"request id [\w.:=/-]+", "request id ID"),
        (r"attempts in [\d.]+ s", "attempts in T s"),
        (r"expired at [\d-]+ [\d:]+ UTC", "expired at TIME UTC"),
        (r"Installed backends: [\w, ]+", "Installed backends: NAMES"),
        (r"Temporary failure in name resolution", "Name or service not known"),  # what a machine without DNS says
        (r"\. (Near: |The folder holds ).*", ""),  # other tests put files there, too
    ):
        text = re.sub(pattern, new, text)
    return text


# --- the cases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What must be said in `section` when `provoke` is called with the fixture `needs`.

    Attributes:
        section: Heading of the table.
        says: A part of the message that no other row of the section has.
        needs: Name of a fixture.
        provoke: Raises, or returns the remark of a report.
    """

    section: str
    says: str
    needs: str
    provoke: Callable[[Any], str | None]


def load(uri: Any, options: Any = None, **more: Any) -> None:
    streamer.load(uri, storage_options=options, progress=False, **more)


def remark(uri: str, options: dict[str, Any] | None = None) -> str:
    with streamer.stream(uri, storage_options=options) as stream:
        list(stream)
    (said,) = stream.report.remarks
    return said


def load_without(library: str, uri: str) -> None:
    """Load in a process that lacks `library`, and raise what that said."""
    command = [sys.executable, "-c", WITHOUT, library, uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    name, _, message = done.stdout.partition(" ")
    raise getattr(streamer, name)(message)


# files


def closed_folder(folder: Path) -> None:
    """Root may search any folder, so the test is nobody for a moment."""
    save_file(SAVED, folder / "model.safetensors")
    load(folder)  # imports what it needs
    folder.chmod(0)
    try:
        with as_nobody():
            load(folder / "model.safetensors")
    finally:
        folder.chmod(0o700)


def empty_folder(folder: Path) -> None:
    (folder / "README.md").write_text("no weights")
    load(folder)


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    load(folder)


def half_a_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(SHARD[:-4])
    load(folder)


FILES = [
    Case("Files", "No such file or folder", "tmp_path", lambda folder: load(folder / "llama")),
    Case("Files", "refuses access", "tmp_path", closed_folder),
    Case("Files", "holds no *.safetensors", "tmp_path", empty_folder),
    Case("Files", "the index names shard", "tmp_path", missing_shard),
    Case("Files", "cut short", "tmp_path", half_a_file),
]


# nfs


def unreadable_file(server: Any) -> None:
    server.put("page/closed.safetensors", SHARD, mode=0o600)
    load(server.url("page/closed.safetensors", uid=4711, gid=4711))


def build_without_nfs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_native, "has_nfs", False)
    load("nfs://filer/export/llama")


NFS = [
    Case("NFS", "NOENT", "nfs_server", lambda server: load(server.url("llama.safetensors"))),
    Case("NFS", "ACCESS", "nfs_server", unreadable_file),
    Case("NFS", "no connection", "tmp_path", lambda _: load("nfs://127.0.0.1:9/export/llama")),
    Case("NFS", "resolved", "tmp_path", lambda _: load("nfs://no-such-server.invalid/export/llama")),
    Case("NFS", "has no option", "tmp_path", lambda _: load("nfs://filer/export/llama?vers=4")),
    Case("NFS", "no NFS client", "monkeypatch", build_without_nfs),
]


# S3


def s3(server: SeaweedServer, path: str = "private/llama/model.safetensors", **changes: Any) -> None:
    server.put("private", "llama/model.safetensors", SHARD)
    load(f"s3://{path}", {**server.storage_options(), **changes})


def s3_limited(path: str) -> Callable[[SeaweedServer], None]:
    return lambda server: s3(server, path, key=server.limited.access_key, secret=server.limited.secret_key)


def s3_anonymous(server: SeaweedServer) -> None:
    s3(server, "private/closed.safetensors", key=None, secret=None, anon=True)


def s3_replaced(server: SeaweedServer) -> None:
    server.put("private", "replaced.safetensors", SHARD)
    with streamer.open("s3://private/replaced.safetensors", storage_options=server.storage_options()) as opened:
        server.put("private", "replaced.safetensors", save({"x": torch.ones(5)}))
        opened.get_tensors()


S3 = [
    Case("S3", "no object of this name", "s3_server", lambda server: s3(server, "private/nix.safetensors")),
    Case("S3", "There is no bucket", "s3_server", lambda server: s3(server, "nosuchbucket/llama")),
    Case("S3", "No complete AWS credentials", "s3_server", lambda server: s3(server, key=None, secret=None)),
    Case("S3", "does not know this access key", "s3_server", lambda server: s3(server, key="AKIDUNKNOWN")),
    Case("S3", "does not belong to the access key", "s3_server", lambda server: s3(server, secret="another")),
    Case("S3", "model.safetensors: S3 refuses", "s3_server", s3_limited("private/llama/model.safetensors")),
    Case("S3", "folder/: S3 refuses", "s3_server", s3_limited("private/folder")),
    Case("S3", "closed.safetensors: S3 refuses", "s3_server", s3_anonymous),
    Case("S3", "No connection", "s3_server", lambda server: s3(server, endpoint_url="http://127.0.0.1:9")),
    Case("S3", "TLS handshake", "s3_tls_server", lambda server: s3(server, client_kwargs={})),
    Case("S3", "verify=False", "s3_tls_server", lambda server: s3(server, client_kwargs={"verify": False})),
    Case("S3", "replaced", "s3_server", s3_replaced),
    Case("S3", "cannot be imported", "tmp_path", lambda _: load_without("s3fs", "s3://bucket/llama")),
]


# Google Cloud Storage


def gcs(server: GcsServer, path: str = "private/llama/model.safetensors", **changes: Any) -> None:
    server.put("private", "llama/model.safetensors", SHARD)
    load(f"gs://{path}", {"endpoint_url": server.endpoint_url, "token": server.gate.issue("owner"), **changes})


def gcs_as(identity: str, path: str) -> Callable[[GcsServer], None]:
    return lambda server: gcs(server, path, token=server.gate.issue(identity))


def gcs_paying(server: GcsServer) -> None:
    server.put("paying", "llama/model.safetensors", SHARD)
    gcs(server, "paying/llama/model.safetensors")


GCS = [
    Case("Google Cloud Storage", *rest)
    for rest in (
        ("no object of this name", "gcs_server", lambda server: gcs(server, "private/nix.safetensors")),
        ("There is no bucket", "gcs_server", lambda server: gcs(server, "nosuchbucket/llama.safetensors")),
        ("No Google credentials", "gcs_server", lambda server: gcs(server, token=None)),
        ("The bucket is not public", "gcs_server", lambda server: gcs(server, token="anon")),
        ("does not accept the access token", "gcs_server", lambda server: gcs(server, token="ya29.another")),
        ("may not read", "gcs_server", gcs_as("reader", "private/folder")),
        ("the reader pays", "gcs_server", gcs_paying),
        ("names a file", "gcs_server", lambda server: gcs(server, token="/keys/reader.json")),
        ("No connection", "gcs_server", lambda server: gcs(server, endpoint_url="http://127.0.0.1:9")),
        (
            "TLS handshake",
            "https_server",
            lambda web: load("gs://b/llama", {"endpoint_url": web.https_url, "token": "anon"}),
        ),
        ("cannot be imported", "tmp_path", lambda _: load_without("gcsfs", "gs://bucket/llama")),
    )
]


# Azure Blob


def azure(server: AzuriteServer, path: str = "private/llama/model.safetensors", options: Any = None) -> None:
    server.put("private", "llama/model.safetensors", SHARD)
    load(f"az://{path}", server.storage_options() if options is None else options)


def azure_with_another_key(server: AzuriteServer) -> None:
    azure(server, options={"connection_string": server.connection_string.replace(server.key, "QW5vdGhlcg==")})


def azure_with_sas(permission: str, lifetime_s: float = 3600.0) -> Callable[[AzuriteServer], None]:
    def provoke(server: AzuriteServer) -> None:
        options = server.sas_options(server.container_sas("private", permission, lifetime_s))
        azure(server, "private/folder", options)

    return provoke


def azure_without_login(server: AzuriteServer) -> None:
    """Only command line tools are asked, and none is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        patch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
        azure(server, options={**server.host_options(), "skip_instance_cache": True})


def azure_not_running(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retry, "PAUSE_S", 0)
    load("az://private/llama", {"connection_string": "BlobEndpoint=http://127.0.0.1:9/devstoreaccount1"})


def azure_of_another_name(_: Any) -> None:
    options = {"account_name": "nosuch", "account_host": "nosuch.invalid", "account_key": "QW5vdGhlcg=="}
    load("az://models/llama", {**options, "retry_total": 0})


AZURE = [
    Case("Azure Blob", *rest)
    for rest in (
        ("no blob of this name", "azure_server", lambda server: azure(server, "private/nix.safetensors")),
        ("There is no container", "azure_server", lambda server: azure(server, "nosuch/llama.safetensors")),
        ("No storage account", "tmp_path", lambda _: load("az://models/llama", {"anon": True})),
        ("no storage account 'nosuch'", "tmp_path", azure_of_another_name),
        ("No Azure credentials", "azure_tls_server", azure_without_login),
        ("is not public", "azure_server", lambda server: azure(server, options=server.anonymous_options())),
        ("does not accept the account key", "azure_server", azure_with_another_key),
        ("The SAS expired", "azure_server", azure_with_sas("rl", -60.0)),
        ("does not give this permission", "azure_server", azure_with_sas("r")),
        ("No connection", "monkeypatch", azure_not_running),
        (
            "TLS handshake",
            "azure_tls_server",
            lambda s: azure(s, options={**s.storage_options(), "connection_verify": None}),
        ),
        ("cannot be imported", "tmp_path", lambda _: load_without("adlfs", "az://models/llama")),
    )
]


# HTTP


def http(path: str, **options: Any) -> Callable[[NginxServer], None]:
    def provoke(server: NginxServer) -> None:
        load(server.http_url + path, options)

    return provoke


def https(path: str) -> Callable[[NginxServer], None]:
    return lambda server: load(server.https_url + path, {"verify": server.ca_file})


def expired_signature(_: Any) -> None:
    body = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    with ScriptedServer(b"", lambda request, answer: answer.become(403, body)) as server:
        load(server.url + ".safetensors?X-Amz-Signature=0")


def compressing(_: Any) -> None:
    def script(request: Any, answer: Any) -> None:
        answer.headers["Content-Encoding"] = "gzip"

    with ScriptedServer(SHARD, script) as server:
        load(server.url + ".safetensors")


HTTP = [
    Case("HTTP", *rest)
    for rest in (
        ("There is no such file", "http_server", http("/open/nix.safetensors")),
        ("wants other credentials", "http_server", http("/private/model/model.safetensors")),
        ("/forbidden/model.safetensors: The server", "http_server", http("/forbidden/model.safetensors")),
        ("Listing was refused", "http_server", http("/forbidden/model")),
        ("token has expired", "tmp_path", expired_signature),
        ("web page instead", "http_server", http("/login/model.safetensors")),
        ("from TLS to plain", "https_server", https("/down/model.safetensors")),
        ("scheme that is not HTTP", "http_server", http("/ftp/model.safetensors")),
        ("more than 5 times", "http_server", http("/round/model.safetensors")),
        ("TLS handshake", "https_server", lambda server: load(f"{server.https_url}/open/model")),
        ("Unverified TLS", "http_server", http("/open/model", verify=False)),
        ("No connection", "tmp_path", lambda _: load("http://127.0.0.1:9/model.safetensors")),
        ("neither the size of the file", "http_server", http("/chunked/model/model-00001-of-00004.safetensors")),
        ("compresses", "tmp_path", compressing),
        ("does not honour", "http_server", lambda server: remark(f"{server.http_url}/whole/model")),
        (
            "only fsspec",
            "http_server",
            lambda server: remark(f"{server.http_url}/open/model", {"get_client": get_client}),
        ),
        ("cannot be imported", "tmp_path", lambda _: load_without("aiohttp", "https://example.org/llama")),
    )
]


async def get_client(**options: Any) -> Any:
    import aiohttp

    return aiohttp.ClientSession(**options)


# Hugging Face Hub


def hub(uri: str, token: str | bool = False) -> Callable[[HubServer], None]:
    def provoke(server: HubServer) -> None:
        for name, how in (("open", {}), ("private", {"private": True}), ("gated", {"gated": True})):
            server.make(f"page/{name}", **how).commit({"model.safetensors": SHARD})
        load(uri, {"endpoint": server.url, "token": token})

    return provoke


def offline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(constants, "HF_HUB_OFFLINE", True)
    load("hf://page/llama")


HUB = [
    Case("Hugging Face Hub", *rest)
    for rest in (
        ("no such repository", "hub_server", hub("hf://page/private")),
        ("is gated", "hub_server", hub("hf://page/gated", STRANGER)),
        ("does not accept this token", "hub_server", hub("hf://page/open", "hf_another")),
        ("branch, tag or commit", "hub_server", hub("hf://page/open@v2")),
        ("no such file or folder", "hub_server", hub("hf://page/open/nix.safetensors")),
        ("no saved login", "tmp_path", lambda _: load("hf://page/open", {"token": True})),
        ("No connection", "tmp_path", lambda _: load("hf://page/open", {"endpoint": "http://127.0.0.1:9"})),
        (
            "one of the Hub's: text",
            "http_server",
            lambda web: load("hf://page/open", {"endpoint": f"{web.http_url}/login"}),
        ),
        (
            "Hub's (HTTP 404)",
            "http_server",
            lambda web: load("hf://page/open", {"endpoint": f"{web.http_url}/no-hub"}),
        ),
        ("not in the cache", "monkeypatch", offline),
        ("TLS handshake", "https_server", lambda web: load("hf://page/open", {"endpoint": web.https_url})),
        ("cannot be imported", "tmp_path", lambda _: load_without("huggingface_hub", "hf://page/open")),
    )
]


# every other fsspec URL


def wrong_password(folder: Path) -> None:
    with SftpServer(folder) as server:
        load(server.url("llama").replace(PASSWORD, "another"))


def missing_member(folder: Path) -> None:
    with zipfile.ZipFile(folder / "llama.zip", "w") as archive:
        archive.writestr("model.safetensors", SHARD)
    load(f"zip://nix.safetensors::file://{folder}/llama.zip")


FSSPEC = [
    Case("Every other fsspec URL", *rest)
    for rest in (
        ("There is no backend for nosuch://. ", "tmp_path", lambda _: load("nosuch://host/llama")),
        ("There is no backend for sftp://", "tmp_path", lambda _: load_without("paramiko", "sftp://host/llama")),
        ("nosuch:// in this chain", "tmp_path", lambda _: load("simplecache::nosuch://host/llama")),
        ("does not accept the user, password or key", "tmp_path", wrong_password),
        ("no such file", "tmp_path", missing_member),
        ("No connection", "tmp_path", lambda _: load("ftp://127.0.0.1:9/llama")),
        ("refuses the URL", "tmp_path", lambda _: load("reference://llama")),
    )
]


# several at once, instances


def same_name_twice(folder: Path) -> None:
    for name in ("a", "b"):
        save_file(SAVED, folder / f"{name}.safetensors")
    load([folder / "a.safetensors", folder / "b.safetensors"])


SEVERAL = [
    Case("Several at once, and instances", *rest)
    for rest in (
        ("a list of 3", "tmp_path", lambda _: load(["/a", "/b"], [{}, {}, {}])),
        ("is in two shards", "tmp_path", same_name_twice),
        ("fs= has options", "tmp_path", lambda _: load("/a", {"key": "k"}, fs=MemoryFileSystem())),
    )
]

CASES = [*FILES, *NFS, *S3, *GCS, *AZURE, *HTTP, *HUB, *FSSPEC, *SEVERAL]


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No credentials, proxies or caches of whoever runs this, and none of another test."""
    for name in os.environ:
        own = name.startswith(("AZURE_", "GOOGLE_", "GCS", "CLOUDSDK_", "STORAGE_", "HF_", "HUGGING"))
        if own or name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(home / "gcloud"))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    close_idle()
    LOGINS.clear()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.section}: {case.says}")
def test_the_page_shows_the_message(case: Case, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (row,) = (row for row in rows_of(PAGE) if row.section == case.section and case.says in row.line)
    kind, said = outcome(case, request.getfixturevalue(case.needs))
    assert (normalised(said, (str(tmp_path), "/models")), kind) == (row.line, row.kind)


def outcome(case: Case, fixture: Any) -> tuple[str, str]:
    try:
        said = case.provoke(fixture)
    except streamer.StreamerError as error:
        return type(error).__name__, str(error)
    assert said is not None, "nothing was said"
    return "a remark", said


def test_every_row_of_the_page_is_provoked() -> None:
    proved = {(row.section, row.line) for case in CASES for row in rows_of(PAGE) if matches(case, row)}
    assert {(row.section, row.line) for row in rows_of(PAGE)} == proved
    assert len(proved) == len(CASES)


def matches(case: Case, row: Row) -> bool:
    return row.section == case.section and case.says in row.line


@each_row("scheme", [point.name for point in enabled() if is_builtin(point)])
def test_every_scheme_has_an_example_and_its_install_line(scheme: str) -> None:
    assert f"{scheme}://" in PAGE
    assert (f"Install: the extra `{EXTRAS[scheme]}`" if scheme in EXTRAS else "Install: nothing") in PAGE


def test_every_example_is_python() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) > 10
    for example in examples:
        compile(example, "docs/backends.md", "exec")


OPTIONS = {
    "NFS": set(BOUNDS),
    "S3": {*inspect.signature(S3FileSystem.__init__).parameters, "profile"},  # given on to botocore's session
    "Google Cloud Storage": set(inspect.signature(GCSFileSystem.__init__).parameters),
    "Azure Blob": {
        *inspect.signature(AzureBlobFileSystem.__init__).parameters,
        "connection_verify",
        "proxies",
        "retry_total",
    },
    "HTTP": set(http_options._OWN),
    "Hugging Face Hub": {"token", "endpoint", "private", *hf_client.OF_HTTP},
}


@each_row("section", OPTIONS)
def test_every_option_of_the_page_exists(section: str) -> None:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named
    assert named <= OPTIONS[section]


def test_a_cache_over_an_emulator_loads_as_the_page_says(
    gcs_server: GcsServer, gcs_checkpoint: str, checkpoint: Path, tmp_path: Path
) -> None:
    """In a process of its own, because gcsfs chooses its class when it is imported."""
    (line,) = re.findall(r"^export (GCSFS_\w+=\w+)$", PAGE, re.MULTILINE)
    options = {"gs": gcs_server.storage_options(), "simplecache": {"cache_storage": str(tmp_path)}}
    command = [sys.executable, "-c", COUNT, f"simplecache::{gcs_checkpoint}/*.safetensors", json.dumps(options)]
    environment = {**os.environ, **dict([line.split("=")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == len(streamer.load(checkpoint))
