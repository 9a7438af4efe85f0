"""Credentials of a real Azure Blob server that expire: signatures, SAS and tokens are renewed, or their end is told."""

from __future__ import annotations

import time
import traceback

import pytest
from comparison import assert_same
from servers.azurite import Login

import streamer
from streamer.backends.azure import client as azure_client

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("nothing_from_outside")]

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
