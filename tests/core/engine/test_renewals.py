"""Credentials that expire are renewed, by a server of credentials that may be away or wrong."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from servers.scripted_http import ScriptedServer

from streamer import Options
from streamer.core import errors
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

DATA = os.urandom(100_000)


def read(source, **options):
    plan = plan_reads([Item(0, 0, len(DATA))], 0)
    session = ReadSession([SourceObject("test://object", source, len(DATA))], plan, resolve(Options(**options)))
    try:
        assert session.next_items() == [0]
        return bytes(memoryview(session.take(0)))
    finally:
        session.close()


def expired(url, refresh):
    return HttpSource(url, expires_at_s=time.time() - 60, refresh=refresh)


def test_credentials_that_are_issued_already_expired_end_the_load_regression():
    """They were renewed without end: 42 times in two seconds, and no request was sent."""
    renewals = []

    def refresh():
        renewals.append(None)
        return expired(server.url, refresh)

    with ScriptedServer(DATA) as server, pytest.raises(errors.CredentialsError, match="clock"):
        read(expired(server.url, refresh))
    assert len(renewals) == 3
    assert server.requests == []


def test_an_unreachable_server_of_credentials_is_asked_again():
    asked = []

    def refresh():
        asked.append(None)
        if len(asked) == 1:
            raise errors.ConnectError("no connection to the server of credentials")
        return replace(expired(server.url, refresh), expires_at_s=None)

    with ScriptedServer(DATA) as server:
        assert read(expired(server.url, refresh)) == DATA
    assert len(asked) == 2


def test_an_unreachable_server_of_credentials_ends_the_load():
    def refresh():
        raise errors.ConnectError("no connection to the server of credentials")

    with ScriptedServer(DATA) as server, pytest.raises(errors.ConnectError, match="server of credentials"):
        read(expired(server.url, refresh), block_deadline_s=0.6)


def test_a_refusal_of_new_credentials_is_final_at_once():
    asked = []

    def refresh():
        asked.append(None)
        raise errors.CredentialsError("no")

    with ScriptedServer(DATA) as server, pytest.raises(errors.CredentialsError):
        read(expired(server.url, refresh))
    assert len(asked) == 1


def test_a_source_of_credentials_that_fails_for_a_moment_is_asked_again_regression():
    """The file of a token was missing while it was rotated, and the load ended."""
    asked = []

    def refresh():
        asked.append(None)
        if len(asked) < 3:
            missing = errors.CredentialsError("the file of the token is missing")
            missing.may_come = True
            raise missing
        return replace(expired(server.url, refresh), expires_at_s=None)

    with ScriptedServer(DATA) as server:
        assert read(expired(server.url, refresh)) == DATA
    assert len(asked) == 3
