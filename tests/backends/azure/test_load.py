"""The public face over a real Azure Blob server: loads under every credential, and blobs that change meanwhile."""

from __future__ import annotations

import time
import traceback

import pytest
import safetensors.torch
from comparison import assert_same
from servers.azurite import AzuriteServer, Login

import streamer

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("nothing_from_outside")]

TIGHT = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=1 << 20, http_reactors=1, http_in_flight=1)


@pytest.mark.parametrize(
    "form",
    [
        "az://private/models/small",
        "az://private/models/small/",
        "abfs://private/models/small",
        "abfs://private@{account}.dfs.core.windows.net/models/small",
        "abfss://private@{account}.dfs.core.windows.net/models/small",
        "az://private/models/small/model.safetensors.index.json",
        "az://private/models/small/*.safetensors",
        "az://private/models/small/model-0000?-of-00004.safetensors",
        "simplecache::az://private/models/small/*.safetensors",
    ],
)
def test_every_way_to_name_it_gives_equal_tensors(azure_server, azure_checkpoint, reference, form, tmp_path):
    options = azure_server.storage_options()
    given = {"az": options, "simplecache": {"cache_storage": str(tmp_path)}} if "::" in form else options
    assert_same(streamer.load(form.format(account=azure_server.account), storage_options=given), reference)


@pytest.mark.parametrize("end", ["", "/model.safetensors.index.json", "/*.safetensors"])
def test_an_https_url_of_an_account_gives_equal_tensors(azure_server, azure_checkpoint, reference, end):
    uri = f"https://{azure_server.account}.blob.core.windows.net/private/models/small{end}"
    assert_same(streamer.load(uri, storage_options=azure_server.storage_options()), reference)


def of_container(server: AzuriteServer):
    return server.sas_options(server.container_sas("private"))


def of_token(server: AzuriteServer):
    return {**server.host_options(), "credential": Login()}


@pytest.mark.parametrize("options", [AzuriteServer.storage_options, of_container, of_token])
def test_every_credential_loads_over_tls(azure_tls_server, tls_checkpoint, reference, options):
    assert_same(streamer.load(tls_checkpoint, storage_options=options(azure_tls_server)), reference)


def test_a_sas_of_the_environment_loads(azure_tls_server, tls_checkpoint, reference, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", azure_tls_server.container_sas("private"))
    options = {**azure_tls_server.host_options(), "skip_instance_cache": True}
    assert_same(streamer.load(tls_checkpoint, storage_options=options), reference)


@pytest.mark.parametrize("root", ["az://", "https://{account}.blob.core.windows.net/"])
def test_a_sas_in_the_url_loads_and_is_in_no_report(azure_tls_server, tls_checkpoint, reference, root):
    sas = azure_tls_server.container_sas("private")
    uri = root.format(account=azure_tls_server.account) + tls_checkpoint.removeprefix("az://")
    with streamer.stream(f"{uri}?{sas}", storage_options=azure_tls_server.host_options()) as stream:
        assert_same(dict(stream), reference)
        assert "sig=" not in f"{stream!r}{stream.report}"


@pytest.mark.parametrize("scope", ["container", "blob"])
def test_a_sas_that_may_not_list_loads_a_named_shard(azure_server, azure_checkpoint, checkpoint, scope):
    name = "models/small/model-00001-of-00004.safetensors"
    read_only = azure_server.container_sas("private", "r")
    sas = read_only if scope == "container" else azure_server.blob_sas("private", name)
    got = streamer.load(f"az://private/{name}", storage_options=azure_server.sas_options(sas))
    assert_same(got, safetensors.torch.load_file(checkpoint / "model-00001-of-00004.safetensors"))


def test_a_sas_of_one_blob_does_not_load_the_folder(azure_server, azure_checkpoint):
    sas = azure_server.blob_sas("private", "models/small/model-00001-of-00004.safetensors")
    with pytest.raises(streamer.AccessDeniedError, match="SAS"):
        streamer.load(azure_checkpoint, storage_options=azure_server.sas_options(sas))


@pytest.mark.parametrize("path", ["", "/model.safetensors.index.json"])
def test_a_sas_that_may_not_list_loads_by_the_index(azure_server, azure_checkpoint, reference, path):
    options = azure_server.sas_options(azure_server.container_sas("private", "r"))
    assert_same(streamer.load(f"{azure_checkpoint}{path}", storage_options=options), reference)


def test_it_loads_anonymously_where_the_container_is_public(azure_server, checkpoint, reference):
    uri = azure_server.upload_folder(checkpoint, "public", "open")
    assert_same(streamer.load(uri, storage_options=azure_server.anonymous_options()), reference)


def test_small_blocks_and_little_memory_change_nothing(azure_server, azure_checkpoint, reference):
    with streamer.stream(azure_checkpoint, storage_options=azure_server.storage_options(), options=TIGHT) as stream:
        assert_same(dict(stream), reference)


def test_an_adlfs_instance_is_read_natively(azure_server, azure_checkpoint, reference):
    import adlfs

    fs = adlfs.AzureBlobFileSystem(**azure_server.storage_options())
    with streamer.stream(azure_checkpoint.removeprefix("az://"), fs=fs) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.requests > 0


# --- what changes under a load ------------------------------------------------------------------------------------


def test_a_blob_replaced_between_header_and_data_is_noticed(azure_server, checkpoint):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    azure_server.put("private", "swap/x.safetensors", shard)
    opened = streamer.open("az://private/swap/x.safetensors", storage_options=azure_server.storage_options())
    azure_server.put("private", "swap/x.safetensors", shard[:-8] + b"\0\1\2\3\4\5\6\7")
    with pytest.raises(streamer.ChangedError, match=r"swap/x\.safetensors"):
        opened.get_tensors()


def test_a_blob_deleted_after_the_header_is_noticed(azure_server, checkpoint):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    azure_server.put("private", "gone/x.safetensors", shard)
    opened = streamer.open("az://private/gone/x.safetensors", storage_options=azure_server.storage_options())
    azure_server.delete("private", "gone/x.safetensors")
    # Which of the two depends on what the server looks at first: the name, or the condition on its version.
    with pytest.raises((streamer.ObjectNotFoundError, streamer.ChangedError), match=r"gone/x\.safetensors"):
        opened.get_tensors()


def test_a_truncated_upload_is_refused(azure_server, checkpoint):
    shard = (checkpoint / "model-00001-of-00004.safetensors").read_bytes()
    azure_server.put("private", "cut/x.safetensors", shard[: len(shard) // 2])
    with pytest.raises(streamer.TruncatedError, match="cut/x"):
        streamer.load("az://private/cut/x.safetensors", storage_options=azure_server.storage_options())


@pytest.mark.parametrize(
    ("uri", "changes", "error"),
    [
        ("az://private/models/nix", {}, streamer.ObjectNotFoundError),
        ("az://private/models/nix.safetensors", {}, streamer.ObjectNotFoundError),
        ("az://nosuchcontainer/models", {}, streamer.ObjectNotFoundError),
        ("az://private/models/small", {"account_key": "Q0FOQVJZ"}, streamer.CredentialsError),
        ("az://private/models/small", {"account_key": None, "anon": True}, streamer.AccessDeniedError),
        ("az://private/models/small", {"account_host": "127.0.0.1:9/account"}, streamer.ConnectError),
        ("az://private/models/small", {"connection_verify": False}, streamer.OptionError),
        ("az://private/models/small", {"connection_verify": None}, streamer.TlsError),
    ],
)
def test_bad_input_gets_its_own_class_soon_and_without_a_secret(azure_tls_server, tls_checkpoint, uri, changes, error):
    started = time.monotonic()
    with pytest.raises(error) as caught:
        streamer.load(uri, storage_options=azure_tls_server.storage_options(**changes))
    assert time.monotonic() - started < 20
    text = "".join(traceback.format_exception(caught.value))
    for secret in (azure_tls_server.key, "Q0FOQVJZ", "sig=", "Bearer"):
        assert secret not in text
    assert "private" in str(caught.value) or "nosuchcontainer" in str(caught.value) or error is streamer.OptionError
