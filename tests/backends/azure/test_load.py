"""The public face over a real Azure Blob server: loads under every credential, and blobs that change meanwhile."""

from __future__ import annotations

import time
import traceback

import pytest
import safetensors.torch
import warm_python
from comparison import assert_same
from servers.azurite import AzuriteServer, Login

import streamer
from streamer.backends.azure import client as azure_client

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("nothing_from_outside")]


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


def test_an_adlfs_instance_is_read_natively(azure_server, azure_checkpoint, reference):
    import adlfs

    fs = adlfs.AzureBlobFileSystem(**azure_server.storage_options())
    with streamer.stream(azure_checkpoint.removeprefix("az://"), fs=fs) as stream:
        assert_same(dict(stream), reference)
    assert stream.report.requests > 0


# --- what changes under a load ------------------------------------------------------------------------------------


# --- credentials of a real Azure Blob server that expire: signatures, SAS and tokens are renewed, or their end ---

TIGHT = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=1 << 20, http_reactors=1, http_in_flight=1)

SHORT_S = 4  # on a busy machine, a request may take two


def outlive(expires_at_s: float) -> None:
    """Wait until a credential is refused; there is no way to move the server's clock."""
    while time.time() < expires_at_s + 0.1:
        time.sleep(0.02)


def test_a_signature_that_expires_during_a_load_is_made_again(azure_server, azure_checkpoint, reference, monkeypatch):
    monkeypatch.setattr(azure_client, "SIGNATURE_LIFETIME_S", SHORT_S)
    with streamer.stream(azure_checkpoint, storage_options=azure_server.storage_options(), options=TIGHT) as stream:
        tensors = iter(stream)
        found = dict([next(tensors)])
        outlive(time.time() + SHORT_S)
        found.update(tensors)
    assert_same(found, reference)
    assert stream.report.credential_refreshes > 0


def test_a_token_that_expires_during_a_load_is_fetched_again(azure_tls_server, tls_checkpoint, reference):
    login = Login(SHORT_S)
    options = {**azure_tls_server.host_options(), "credential": login}
    with streamer.stream(tls_checkpoint, storage_options=options, options=TIGHT) as stream:
        tensors = iter(stream)
        found = dict([next(tensors)])
        given = len(login.given)
        outlive(time.time() + SHORT_S)
        found.update(tensors)
    assert_same(found, reference)
    assert len(login.given) > given
    assert stream.report.credential_refreshes > 0


def load_slowly(uri, options, when_begun=lambda: None):
    """Load the first tensor, wait until a credential of `SHORT_S` has ended, and load the others."""
    with streamer.stream(uri, storage_options=options, options=TIGHT) as stream:
        tensors = iter(stream)
        next(tensors)
        when_begun()
        outlive(time.time() + SHORT_S)
        list(tensors)


def test_a_given_sas_that_expires_during_a_load_is_refused_and_not_shown(azure_server, azure_checkpoint):
    options = azure_server.sas_options(azure_server.container_sas("private", lifetime_s=SHORT_S))
    with pytest.raises(streamer.AccessDeniedError, match=r"models/small/model-") as caught:
        load_slowly(azure_checkpoint, options)
    assert "sig=" not in "".join(traceback.format_exception(caught.value))


def test_a_login_that_fails_under_a_load_ends_it_with_its_reason(azure_tls_server, tls_checkpoint):
    class Revoked(Login):
        is_revoked = False

        async def get_token(self, *scopes, **rest):
            if self.is_revoked:
                raise RuntimeError("CANARY")
            return await super().get_token(*scopes, **rest)

        def revoke(self):
            self.is_revoked = True

    login = Revoked(SHORT_S)
    options = {**azure_tls_server.host_options(), "credential": login}
    with pytest.raises(streamer.CredentialsError, match="no token") as caught:
        load_slowly(tls_checkpoint, options, login.revoke)
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", ["key", "sas", "anonymous"])
def test_a_plain_load_imports_no_library_of_azure_regression(azure_server, checkpoint, kind):
    """adlfs and the SDK take a third of a second or more of a first load."""
    private = azure_server.upload_folder(checkpoint, "private" if kind != "anonymous" else "public", "models/plain")
    options = {
        "key": azure_server.storage_options(),
        "sas": azure_server.sas_options(azure_server.container_sas("private")),
        "anonymous": azure_server.anonymous_options(),
    }[kind]
    code = (
        f"import sys, streamer; streamer.load({private!r}, storage_options={options!r}); "
        "print({*sys.modules} & {'adlfs', 'azure.core', 'azure.storage', 'azure.identity', 'aiohttp', 'requests'})"
    )
    done = warm_python.run(code)
    assert done.stdout.strip() == "set()", done.stderr
