"""Artifacts and images of a registry over a socket: logins, redirects, digests, archives, faults, and saves."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import stat
import tarfile

import numpy as np
import pytest
import zstandard
from registry_server import IDENTITY, INDEX, PASSWORD, USER, RegistryServer, digest_of
from safetensors.numpy import save
from streamer_stores.oci import logins
from streamer_stores.oci.store import OPTIONS

import streamer

TENSORS = {"a": np.arange(300_000, dtype=np.float32), "b": np.ones((3, 5), dtype=np.float16)}
SHARD = save(TENSORS)
FILES = {"model.safetensors": SHARD, "config.json": b"{}"}
LOGIN = {"username": USER, "password": PASSWORD}
TITLE = "org.opencontainers.image.title"
FILE_PATH = "org.cncf.model.filepath"


@pytest.fixture
def registry():
    with RegistryServer("token", redirects=True) as server:
        server.put_files("org/llama", "v1", FILES)
        yield server


@pytest.fixture(autouse=True)
def _no_logins(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("home")
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))


def uri_of(registry, rest="org/llama:v1"):
    return f"oci://{registry.host}/{rest}"


def load(uri, options=LOGIN, **how):
    return streamer.load(uri, storage_options=options, framework="np", progress=False, **how)


def assert_loads(uri, options=LOGIN, **how):
    loaded = load(uri, options, **how)
    assert sorted(loaded) == sorted(TENSORS)
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)


# --- logins -----------------------------------------------------------------------------------------------------------


def test_the_second_host_never_sees_the_login_and_the_token_service_sees_the_password(registry):
    assert_loads(uri_of(registry))
    assert registry.seen_apart
    assert not any(shown for _, _, shown in registry.seen_apart)
    with_password = {path.partition("?")[0] for _, path, shown in registry.seen if shown.startswith("Basic")}
    assert with_password == {"/token"}


def test_a_basic_login_and_none_at_all(registry):
    registry.login = "basic"
    assert_loads(uri_of(registry))
    registry.login = ""
    assert_loads(uri_of(registry), {})


def entry_of(**entry):
    return lambda folder, host: {"auths": {host: entry}}


def helper_of(script):
    def made(folder, host):
        path = folder / "docker-credential-tests"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"credHelpers": {host: "tests"}}

    return made


AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
ANSWER = json.dumps({"Username": USER, "Secret": PASSWORD})
FILES_OF_LOGINS = {
    "auth": entry_of(auth=AUTH),
    "user": entry_of(username=USER, password=PASSWORD),
    "identity": entry_of(identitytoken=IDENTITY),
    "namespace": lambda folder, host: {"auths": {f"{host}/org": {"auth": AUTH}, host: {"auth": "bm86bm8="}}},
    "old key": lambda folder, host: {"auths": {f"https://{host}/v1/": {"auth": AUTH}}},
    "helper": helper_of(f"cat >/dev/null; echo '{ANSWER}'"),
    "store": lambda folder, host: {
        **helper_of(f"echo '{ANSWER}'")(folder, host),
        "credHelpers": {},
        "credsStore": "tests",
    },
    "token of a helper": helper_of(f"""echo '{json.dumps({"Username": "<token>", "Secret": IDENTITY})}'"""),
    "helper without it": lambda folder, host: {
        **helper_of("echo credentials not found in native keychain; exit 1")(folder, host),
        "auths": {host: {"auth": AUTH}},
    },
}


@pytest.mark.parametrize("kind", FILES_OF_LOGINS)
def test_logins_are_found_where_docker_and_podman_keep_them(registry, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "config.json").write_text(json.dumps(FILES_OF_LOGINS[kind](tmp_path, registry.host)))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert_loads(uri_of(registry), {})
    monkeypatch.delenv("DOCKER_CONFIG")
    assert_loads(uri_of(registry), {"auth_file": str(tmp_path / "config.json")})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "config.json"))
    assert_loads(uri_of(registry), {})


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exec sleep 1000", "did not answer within"),
        ("sleep 1000 & wait", "did not answer within"),
        ("echo broken; exit 2", "failed"),
        ("echo {}", "malformed"),
        ("""echo '{"Username": "x", "Secret": null}'""", "malformed"),
        ("exec yes", "answered more than"),
    ],
)
def test_a_helper_that_fails_is_started_once_and_named_by_the_error(registry, script, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(logins, "HELPER_S", 0.2 if "sleep" in script else 60)
    script = f"echo >>{tmp_path}/starts\n{script}"
    (tmp_path / "config.json").write_text(json.dumps(helper_of(script)(tmp_path, registry.host)))
    with pytest.raises(streamer.CredentialsError, match=rf"docker-credential-tests .*{message}"):
        load(uri_of(registry), {"auth_file": str(tmp_path / "config.json")})
    starts = tmp_path / "starts"
    assert not starts.exists() or starts.read_text() == "\n"  # it may be ended before it writes


@pytest.mark.parametrize("options", [{"username": "x"}, {"password": "x"}, {**LOGIN, "token": "x"}])
def test_options_of_logins_of_which_one_would_be_ignored_are_refused_regression(options):
    with pytest.raises(streamer.OptionError, match="token alone"):
        load("oci://127.0.0.1:1/a:v1", options)


@pytest.mark.parametrize("name", sorted({*OPTIONS} - {"plain_http", "unpack"}))
def test_an_option_that_is_no_text_is_refused_by_its_name_regression(name):
    with pytest.raises(streamer.OptionError, match=f"{name} must be text"):
        load("oci://127.0.0.1:1/a:v1", {name: 5})


@pytest.mark.parametrize("token", ["a\nb", "größe"])
def test_a_token_that_a_header_cannot_hold_is_refused_regression(registry, token):
    with pytest.raises(streamer.CredentialsError, match="characters that no token has"):
        load(uri_of(registry), {"token": token})


@pytest.mark.parametrize(
    "challenge",
    [
        'bearer  REALM="{realm}" , Service=tests',
        'Bearer realm="{realm}",service="tests, and others", Basic realm="Tests"',
        'Basic realm="Tests", Bearer realm="{realm}"',
    ],
)
def test_every_form_of_a_challenge_is_understood_regression(registry, challenge):
    def refuse(handler):
        if not handler.place.startswith("/v2/") or registry._is_allowed(handler):
            return False
        realm = f"http://{registry.host}/token"
        handler.refuse(401, "UNAUTHORIZED", WWW_Authenticate=challenge.format(realm=realm))
        return True

    registry.script = refuse
    assert_loads(uri_of(registry))


@pytest.mark.parametrize("text", ["[]", '{"auths": [1]}', '{"auths": {}', '{"credHelpers": "tests"}'])
def test_a_file_of_logins_of_another_form_is_an_error_that_names_it(registry, tmp_path, text, monkeypatch):
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(streamer.CredentialsError, match=r"config\.json"):
        load(uri_of(registry), {})


def test_a_file_of_logins_that_cannot_be_read_is_an_error(registry, tmp_path):
    with pytest.raises(streamer.CredentialsError, match="cannot be read"):
        load(uri_of(registry), {"auth_file": str(tmp_path / "missing.json")})


def test_without_a_login_the_error_says_how_to_log_in(registry):
    with pytest.raises(streamer.CredentialsError, match="docker login") as caught:
        load(uri_of(registry), {})
    assert caught.value.code == "UNAUTHORIZED"


def test_a_registry_that_refuses_each_token_ends_in_an_error(registry):
    registry.script = lambda handler: registry.tokens.clear()
    with pytest.raises(streamer.CredentialsError):
        load(uri_of(registry))
    assert registry.issued <= 3


def test_tokens_that_the_user_has_are_sent_as_they_are(registry):
    registry.tokens.add("own-token-of-the-tests")
    assert_loads(uri_of(registry), {"token": "own-token-of-the-tests"})
    with pytest.raises(streamer.CredentialsError):
        load(uri_of(registry), {"token": "another-token-of-the-tests"})


@pytest.mark.parametrize("realm", ["http://169.254.169.254/token", "https://user@host/token", "file:///token", ""])
def test_a_password_goes_to_no_token_service_without_tls_regression(realm):
    """A registry with TLS sends a password to no service without TLS; the stand-in claims to have TLS."""
    from streamer_stores.oci.reference import parse_reference
    from streamer_stores.oci.registry import Registry

    from streamer.plugins import Limits

    asked = Registry(parse_reference("oci://registry.test/org/llama"), LOGIN, Limits())
    with pytest.raises(streamer.CredentialsError, match="not to be trusted"):
        asked._take(f'Bearer realm="{realm}",service="tests"', "oci://registry.test/org/llama", {})


@pytest.mark.parametrize("redirects", [True, False])
def test_a_token_that_is_refused_in_the_middle_is_exchanged(registry, redirects):
    registry.redirects = redirects
    blobs = []

    def script(handler):
        if "/blobs/" in handler.place:
            blobs.append(handler.place)
            if len(blobs) == 3:
                registry.tokens.clear()

    registry.script = script
    options = streamer.Options(block_bytes=100_000)
    loaded = streamer.load(uri_of(registry), storage_options=LOGIN, framework="np", progress=False, options=options)
    assert np.array_equal(loaded["a"], TENSORS["a"])


# --- names and digests ------------------------------------------------------------------------------------------------


def test_a_file_a_folder_and_a_digest_can_be_named(registry):
    digest = registry.put_files("org/two", "v2", {f"vae/{name}": data for name, data in FILES.items()})
    for rest in (
        "two:v2/vae",
        "two:v2/vae/model.safetensors",
        f"two@{digest}/vae",
        f"two:other@{digest}/vae/*.safetensors",
    ):
        assert_loads(uri_of(registry, f"org/{rest}"))


def test_the_tag_is_latest_if_none_is_named(registry):
    registry.put_files("org/llama", "latest", FILES)
    assert_loads(uri_of(registry, "org/llama"))


def test_a_missing_tag_or_repository_is_named(registry):
    for rest in ("org/llama:v2/model.safetensors", "org/other:v1/model.safetensors"):
        with pytest.raises(streamer.ObjectNotFoundError, match=r"no tag v\d"):
            load(uri_of(registry, rest))


def test_a_registry_without_tls_says_which_option_it_needs_regression(registry):
    with pytest.raises(streamer.TlsError, match="'plain_http': True"):
        load(uri_of(registry), {**LOGIN, "plain_http": False})


def test_a_digest_in_upper_case_is_the_same_and_another_platform_is_an_error_that_lists_them(registry):
    digest = registry.put_files("org/llama", "v1", FILES)
    assert_loads(uri_of(registry, f"org/llama@{digest.upper()}"))
    entry = {"digest": digest, "size": 1, "platform": {"os": "linux", "architecture": "amd64"}}
    registry.put_manifest("org/llama", "all", {"manifests": [entry]}, INDEX)
    with pytest.raises(streamer.UsageError, match=r"platform of the options.*: linux/amd64"):
        load(uri_of(registry, "org/llama:all"), {**LOGIN, "platform": "linux/s390x"})


def test_what_is_no_reference_is_refused(registry):
    for rest in ("", "UPPER:v1", "org/llama:v 1"):
        with pytest.raises(streamer.UsageError, match="not the URL of an artifact"):
            load(uri_of(registry, rest))


def test_oracles_urls_are_left_to_others():
    with pytest.raises((streamer.UnknownSchemeError, streamer.StorageError, streamer.UsageError)) as caught:
        load("oci://bucket@namespace/model.safetensors", {})
    assert "artifact" not in str(caught.value)


def test_a_manifest_with_another_digest_is_refused(registry):
    digest = registry.put_files("org/llama", "v1", FILES)
    kind, text = registry.manifests["org/llama", digest]
    for name in (digest, "v1"):
        registry.manifests["org/llama", name] = kind, text + b" "

    def script(handler):  # the tag's answer names the digest that it should have
        if handler.place.endswith("/manifests/v1") and registry._is_allowed(handler):
            handler.send(200, text + b" ", Content_Type=kind, Docker_Content_Digest=digest)
            return True
        return False

    registry.script = script
    for rest in (f"org/llama@{digest}", "org/llama:v1"):
        with pytest.raises(streamer.StreamerError) as caught:
            load(uri_of(registry, f"{rest}/model.safetensors"))
        assert "does not have the digest" in str(caught.value)


def test_verify_auto_covers_every_byte_and_finds_a_flipped_one(registry):
    options = {"storage_options": LOGIN, "framework": "np", "progress": False, "verify": "auto"}
    with streamer.stream(uri_of(registry), **options) as stream:
        dict(stream)
    assert stream.report.is_verified
    wrong = bytearray(SHARD)
    wrong[-1] ^= 1
    registry.blobs[digest_of(SHARD)] = bytes(wrong)
    with pytest.raises(streamer.ChecksumError):
        streamer.load(uri_of(registry), **options)


def test_a_blob_of_another_size_is_refused(registry):
    registry.blobs[digest_of(SHARD)] = SHARD[:-1]
    with pytest.raises(streamer.StorageError, match="its manifest names"):
        load(uri_of(registry))


def test_a_blob_that_the_registry_lost_is_named(registry):
    del registry.blobs[digest_of(SHARD)]
    with pytest.raises(streamer.ObjectNotFoundError, match="lacks a blob"):
        load(uri_of(registry))


# --- archives ---------------------------------------------------------------------------------------------------------

COMPRESSIONS = {"": bytes, "+gzip": gzip.compress, "+zstd": zstandard.compress}


def archive_of(files, *, links=(), prefix=""):
    """Pack files, and then links; a file that is a pair is a link, in its place among the files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in [*dict(files).items(), *((name, (kind, target)) for name, kind, target in links)]:
            member = tarfile.TarInfo(prefix + name)
            if isinstance(data, tuple):
                member.type, member.linkname = data
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize("unpack", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_files_of_an_archive_are_loaded(registry, compression, unpack):
    layer = COMPRESSIONS[compression](archive_of({**FILES, "long/" + "n" * 150 + ".bin": b"123"}, prefix="./"))
    kind = f"application/vnd.cncf.model.weight.v1.tar{compression}"
    registry.put_artifact("org/packed", "v1", (layer, kind, {"org.cncf.model.filepath": "weights"}))
    assert_loads(uri_of(registry, "org/packed:v1"), {**LOGIN, "unpack": unpack})
    with streamer.stream(
        uri_of(registry, "org/packed:v1"),
        storage_options={**LOGIN, "unpack": unpack},
        framework="np",
        progress=False,
        verify="auto",
    ) as stream:
        dict(stream)
    assert stream.report.is_verified is bool(compression or unpack)
    assert stream.report.is_verified or "part of a tar layer" in str(stream.report.verified)


def test_a_plain_archive_is_read_natively_by_ranges(registry):
    layer = archive_of(FILES)
    registry.put_artifact("org/packed", "v1", (layer, "application/vnd.oci.image.layer.v1.tar", {}))
    with streamer.stream(
        uri_of(registry, "org/packed:v1"), storage_options=LOGIN, framework="np", progress=False
    ) as stream:
        assert np.array_equal(dict(stream)["a"], TENSORS["a"])
    assert set(stream.report.readers) == {"http"}


@pytest.mark.parametrize("compression", ["+gzip", "+zstd"])
def test_a_compressed_layer_with_another_digest_is_refused(registry, compression):
    layer, other = (COMPRESSIONS[compression](archive_of({**FILES, "x": bytes([each])})) for each in (1, 2))
    kind = f"application/vnd.oci.image.layer.v1.tar{compression}"
    registry.put_artifact("org/packed", "v1", (layer, kind, {}))
    registry.blobs[digest_of(layer)] = other[: len(layer)].ljust(len(layer), b"\0")
    with pytest.raises(streamer.StorageError):
        load(uri_of(registry, "org/packed:v1/model.safetensors"))


def test_an_image_has_the_files_of_its_last_layer_and_links(registry):
    kind = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    first = gzip.compress(
        archive_of({"models/old.safetensors": b"old", "models/model.safetensors": b"old", "etc/x": b""})
    )
    links = [
        ("models/link.safetensors", tarfile.SYMTYPE, "model.safetensors"),
        ("h", tarfile.LNKTYPE, "models/model.safetensors"),
    ]
    second = gzip.compress(
        archive_of({"models/.wh.old.safetensors": b"", "models/model.safetensors": SHARD}, links=links)
    )
    registry.put_artifact("org/car", "v1", (first, kind, {}), (second, kind, {}))
    for name in ("model", "link"):
        assert_loads(uri_of(registry, f"org/car:v1/models/{name}.safetensors"))
    with pytest.raises(streamer.ObjectNotFoundError):
        load(uri_of(registry, "org/car:v1/models/old.safetensors"))


OLD = save({"a": TENSORS["a"] + 1, "b": TENSORS["b"]})  # as large as SHARD
FOLDER, SYMBOLIC, HARD = (tarfile.DIRTYPE, ""), tarfile.SYMTYPE, tarfile.LNKTYPE
LAYERED = {  # layers, and where SHARD is in them as a container sees them; None: nowhere
    "a mark spares its own layer": ([{"m": OLD}, {"m": SHARD, ".wh.m": b""}], "m"),
    "an opaque mark at the end": ([{"x/old": OLD}, {"x/m": SHARD, "x/.wh..wh..opq": b""}], "x/m"),
    "an opaque mark of the root": ([{"old/m": OLD}, {".wh..wh..opq": b"", "new/m": SHARD}], "new/m"),
    "marks are no files": ([{"x": OLD}, {".wh.x": b"", ".wh..wh.plnk": b""}], None),
    "a link before its target": ([{"m": (SYMBOLIC, "blobs/1"), "blobs/1": SHARD}], "m"),
    "a chain of links": ([{"m": (SYMBOLIC, "n"), "n": (SYMBOLIC, "/o"), "o": SHARD}], "m"),
    "a link to an earlier layer": ([{"blobs/1": SHARD}, {"x/m": (SYMBOLIC, "../blobs/1")}], "x/m"),
    "a target that a later layer replaces": ([{"1": OLD, "m": (SYMBOLIC, "1")}, {"1": SHARD}], "m"),
    "a link to a folder": ([{"v2/m": SHARD, "now": (SYMBOLIC, "v2")}], "now/m"),
    "a folder that becomes a link": ([{"now/m": OLD, "v2/m": SHARD}, {"now": (SYMBOLIC, "v2")}], "now/m"),
    "a link that becomes a folder": (
        [{"v1/m": OLD, "now": (SYMBOLIC, "v1")}, {"now": FOLDER, "now/m": SHARD}],
        "now/m",
    ),
    "a file behind a link": ([{"v1/m": OLD, "now": (SYMBOLIC, "v1")}, {"now/m": SHARD}], "v1/m"),
    "a folder that becomes a file": ([{"x/m": OLD}, {"x": b"file"}], None),
    "a file that becomes a folder": ([{"x": b"file"}, {"x/m": SHARD}], "x/m"),
    "a hard link keeps the first": ([{"1": SHARD, "m": (HARD, "1")}, {"1": OLD}], "m"),
    "a hard link to an earlier layer": ([{"1": SHARD}, {"m": (HARD, "1")}], "m"),
    "a link out of the artifact": ([{"m": (SYMBOLIC, "../../etc/passwd")}], None),
    "a link to itself": ([{"m": (SYMBOLIC, "m"), "x": (SYMBOLIC, "./x/x")}], None),
}


@pytest.mark.parametrize("case", LAYERED)
def test_layers_are_seen_as_by_a_container_regression(registry, case):
    layers, place = LAYERED[case]
    for compress, kind in ((bytes, "tar"), (gzip.compress, "tar+gzip")):
        packed = [(compress(archive_of(each)), f"application/vnd.oci.image.layer.v1.{kind}", {}) for each in layers]
        registry.put_artifact("org/layered", "v1", *packed)
        store = streamer.plugins.open_store(uri_of(registry, "org/layered:v1"), LOGIN)
        names = [info.path for folder in ("", "/x", "/v1") for info in store.find(store.root + folder)]
        assert not [name for name in names if ".wh." in name]
        if place:
            assert_loads(uri_of(registry, f"org/layered:v1/{place}"))
        else:
            with pytest.raises(streamer.StreamerError):
                load(uri_of(registry, "org/layered:v1/m"))
            with pytest.raises(streamer.StreamerError):
                load(uri_of(registry, "org/layered:v1/x/m"))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_archive_that_is_damaged_between_two_files_is_an_error_regression(registry, compression):
    packed = archive_of({"model.safetensors": OLD})
    packed = packed[: 512 + -(-len(OLD) // 512) * 512] + b"x" * 512 + archive_of({"model.safetensors": SHARD})
    kind = f"application/vnd.oci.image.layer.v1.tar{compression}"
    registry.put_artifact("org/bad", "v1", (COMPRESSIONS[compression](packed), kind, {}))
    with pytest.raises(streamer.StorageError, match="not the archive"):
        load(uri_of(registry, "org/bad:v1"))


@pytest.mark.parametrize("title", ["", ".", "/"])
def test_a_layer_with_an_empty_title_has_the_name_of_its_digest(registry, title):
    registry.put_artifact("org/plain", "v1", (SHARD, "application/octet-stream", {TITLE: title}))
    store = streamer.plugins.open_store(uri_of(registry, "org/plain:v1"), LOGIN)
    assert [info.path for info in store.find(store.root)] == [f"{store.root}/{digest_of(SHARD).replace(':', '-')}"]


@pytest.mark.parametrize(
    "document", [b"[" * 100_000, b'{"layers": null}', b'{"layers": [{"digest": "sha256:%s", "size": %d}]}']
)
def test_a_manifest_of_odd_values_is_an_error_of_the_registry(registry, document):
    if b"%" in document:
        document %= (b"0" * 64, 1 << 70)
    registry.manifests["org/odd", "v1"] = "application/vnd.oci.image.manifest.v1+json", document
    with pytest.raises(streamer.StorageError, match="manifest") as caught:
        load(uri_of(registry, "org/odd:v1"))
    assert not isinstance(caught.value, streamer.PluginError)


@pytest.mark.parametrize("name", ["../out.safetensors", "a/../../out.safetensors"])
def test_a_name_that_leads_out_of_the_artifact_is_refused(registry, name):
    packed = gzip.compress(archive_of({name: SHARD}))
    for layer in ((SHARD, "application/octet-stream", {TITLE: name}), (packed, "application/x.tar+gzip", {})):
        registry.put_artifact("org/bad", "v1", layer)
        with pytest.raises(streamer.StorageError, match="leads out of it"):
            load(uri_of(registry, "org/bad:v1/out.safetensors"))


def test_a_layer_that_is_no_archive_is_an_error(registry):
    for suffix in ("", "+gzip", "+zstd"):
        registry.put_artifact("org/bad", "v1", (b"no archive" * 100, f"application/x.tar{suffix}", {}))
        with pytest.raises(streamer.StorageError, match="not the archive"):
            load(uri_of(registry, "org/bad:v1/model.safetensors"))


def test_an_index_is_followed_to_the_platform(registry):
    entries = []
    for name, files in (("amd64", FILES), ("arm64", FILES), ("unknown", {"attestation": b""})):
        digest = registry.put_files("org/multi", name, files)
        text = registry.manifests["org/multi", digest][1]
        notes = {"vnd.docker.reference.type": "attestation-manifest"} if name == "unknown" else {}
        platform = {"os": "linux", "architecture": name}
        entries.append({"digest": digest, "size": len(text), "platform": platform, "annotations": notes})
    registry.put_manifest("org/multi", "v1", {"schemaVersion": 2, "manifests": entries}, INDEX)
    for name in ("amd64", "arm64"):
        assert_loads(uri_of(registry, "org/multi:v1"), {**LOGIN, "platform": f"linux/{name}"})
    with pytest.raises(streamer.UsageError, match="linux/amd64, linux/arm64"):
        load(uri_of(registry, "org/multi:v1/model.safetensors"), {**LOGIN, "platform": "linux/riscv64"})


# --- faults -----------------------------------------------------------------------------------------------------------


FAULTS = {
    "429": lambda handler: handler.send(429, Retry_After="0"),
    "429 without a time": lambda handler: handler.send(429),
    "500": lambda handler: handler.send(500),
    "503": lambda handler: handler.send(503, Retry_After="0"),
    "cut": lambda handler: (handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-"), handler.connection.shutdown(2)),
    "reset": lambda handler: handler.connection.shutdown(2),
}


@pytest.mark.parametrize("part", ["/token", "/manifests/", "/blobs/"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_waited_for(registry, part, fault):
    registry.redirects = False
    failed = []

    def script(handler):
        if part in handler.place and len(failed) < 2:
            failed.append(handler.place)
            FAULTS[fault](handler)
            return True
        return False

    registry.script = script
    assert_loads(uri_of(registry))
    assert len(failed) == 2


# --- saves ------------------------------------------------------------------------------------------------------------


def save_to(uri, tensors=TENSORS, **how):
    return streamer.save(tensors, uri, storage_options=LOGIN, progress=False, **how)


def test_a_checkpoint_is_saved_as_a_modelpack_artifact_and_loaded(registry):
    save_to(uri_of(registry, "org/new:v1"), max_shard_bytes=1_000_000)
    assert_loads(uri_of(registry, "org/new:v1"), verify="auto")
    document = json.loads(registry.manifests["org/new", "v1"][1])
    assert document["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    kinds = {each["annotations"][TITLE]: each["mediaType"] for each in document["layers"]}
    assert kinds["model.safetensors.index.json"] == "application/vnd.cncf.model.weight.config.v1.raw"
    assert [kind for name, kind in kinds.items() if name.endswith(".safetensors")] == [
        "application/vnd.cncf.model.weight.v1.raw"
    ] * 2
    config = json.loads(registry.blobs[document["config"]["digest"]])
    assert config["modelfs"]["diffIds"] == [each["digest"] for each in document["layers"]]


def test_an_existing_checkpoint_is_replaced_only_on_demand(registry):
    uri = uri_of(registry, "org/new:v1")
    save_to(uri)
    with pytest.raises(streamer.UsageError):
        save_to(uri)
    save_to(uri, {"c": np.zeros(7)}, overwrite=True)
    assert list(load(uri)) == ["c"]


def test_a_digest_and_a_foreign_artifact_are_not_written(registry):
    digest = registry.put_files("org/llama", "v1", FILES)
    registry.put_artifact("org/image", "v1", (gzip.compress(archive_of(FILES)), "application/x.tar+gzip", {}))
    for rest, message in ((f"org/llama@{digest}/new", "cannot be changed"), ("org/image:v1/new", "something else")):
        with pytest.raises(streamer.UsageError, match=message):
            save_to(uri_of(registry, rest))


def test_a_save_beside_archives_keeps_them_regression(registry):
    kind = "application/vnd.cncf.model.weight.v1.tar"
    layers = [
        (archive_of({f"{each}/model.safetensors": SHARD}), kind, {FILE_PATH: f"{each}/model.safetensors"})
        for each in "ab"
    ]
    registry.put_artifact("org/packed", "v1", *layers, config="application/vnd.cncf.model.config.v1+json")
    save_to(uri_of(registry, "org/packed:v1/c"))
    for each in "abc":
        assert_loads(uri_of(registry, f"org/packed:v1/{each}"))
    with pytest.raises(streamer.UsageError, match="in a tar layer"):
        save_to(uri_of(registry, "org/packed:v1/a"), overwrite=True)
    store = streamer.plugins.open_store(uri_of(registry, "org/packed:v1"), LOGIN)
    with pytest.raises(streamer.UsageError, match="in a tar layer"):
        store.remove(f"{store.root}/a/model.safetensors")
    for each in "abc":
        assert_loads(uri_of(registry, f"org/packed:v1/{each}"))


def test_every_manifest_of_a_save_names_only_whole_blobs(registry):
    """The stand-in refuses others, and a reader in between sees the files that are there."""
    puts = []

    def script(handler):
        if handler.command == "PUT" and "/manifests/" in handler.place:
            puts.append([each["annotations"][TITLE] for each in json.loads(handler.body)["layers"]])

    registry.script = script
    save_to(uri_of(registry, "org/new:v1"), max_shard_bytes=1_000_000)
    named = [names for names in puts if "model.safetensors.index.json" in names]
    assert all(sum(name.endswith(".safetensors") for name in names) == 2 for names in named)
    assert len(puts[-1]) == len(set(puts[-1]))


def upload_of(handler):
    return handler.place.rpartition("/")[2]


@pytest.mark.parametrize("fault", ["503", "reset before", "reset after", "half"])
def test_a_piece_whose_request_fails_is_sent_again_where_the_registry_lacks_it(registry, fault):
    failed = []

    def script(handler):
        if handler.command != "PATCH" or len(failed) >= 4 or len(handler.body) < 1000:
            return False
        failed.append(handler.place)
        if fault == "503":
            handler.send(503)
        else:
            if fault != "reset before":
                data = registry.uploads[upload_of(handler)]
                begin = int(handler.headers["Content-Range"].partition("-")[0])
                if begin == len(data):
                    data += handler.body if fault == "reset after" else handler.body[: len(handler.body) // 2]
            handler.connection.shutdown(2)
        return True

    registry.script = script
    save_to(uri_of(registry, "org/new:v1"))
    assert failed
    assert_loads(uri_of(registry, "org/new:v1"), verify="auto")


def test_a_save_that_fails_leaves_no_tag(registry):
    registry.script = lambda handler: handler.command == "PATCH" and (handler.refuse(403, "DENIED") or True)
    with pytest.raises(streamer.AccessDeniedError):
        save_to(uri_of(registry, "org/new:v1"))
    assert ("org/new", "v1") not in registry.manifests
    assert not registry.uploads


def test_a_folder_is_pushed_and_pulled(registry, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from streamer import _cli

    folder, back = tmp_path / "folder", tmp_path / "back"
    folder.mkdir()
    for name, data in {**FILES, "README.md": b"read", "tokenizer.json": b"{}"}.items():
        (folder / name).write_bytes(data)
    config = tmp_path / "auth.json"
    config.write_text(json.dumps({"auths": {registry.host: {"auth": AUTH}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(config))
    for command in (
        ["push", str(folder), uri_of(registry, "org/pushed:v1")],
        ["pull", uri_of(registry, "org/pushed:v1"), str(back)],
    ):
        done = CliRunner().invoke(_cli.main, command)
        assert done.exit_code == 0, done.output
    assert {path.name: path.read_bytes() for path in folder.iterdir()}.items() <= {
        path.name: path.read_bytes() for path in back.iterdir() if path.is_file()
    }.items()
