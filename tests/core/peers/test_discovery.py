"""Who the peers are: addresses from a list or a name, without the own one, and never a load that waits for a name."""

from __future__ import annotations

import socket
import threading

import pytest

import streamer
from streamer.core.errors import OptionError, UsageError
from streamer.core.peers import discovery
from streamer.core.peers.discovery import addresses_of, own_ports, split_address

NAME = "dns:peers.example:7070"


@pytest.fixture
def names(monkeypatch):
    """What a name server knows; a test may change it."""
    known = {"peers.example": ["2001:db8::2", "10.255.0.2", "127.0.0.1"]}

    def look_up(host, *_, **__):
        if host not in known and not host[0].isdigit() and ":" not in host:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(None, None, None, "", (ip, 0)) for ip in known.get(host, [host])]

    monkeypatch.setattr(discovery.socket, "getaddrinfo", look_up)
    discovery._last_found.clear()
    return known


def test_every_address_of_a_name_is_a_peer_but_the_own_one(names):
    assert addresses_of(NAME) == ["10.255.0.2:7070", "127.0.0.1:7070", "[2001:db8::2]:7070"]
    assert addresses_of(NAME, own_port=7070) == ["10.255.0.2:7070", "[2001:db8::2]:7070"]
    assert "127.0.0.1:7070" in addresses_of(NAME, own_port=7071)


def test_while_the_name_server_is_away_the_last_answer_counts(names):
    found = addresses_of(NAME)
    names.clear()
    assert addresses_of(NAME) == found
    assert addresses_of("dns:other.example:1") == []


def test_a_name_server_that_hangs_costs_a_bounded_time(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(discovery, "LONGEST_LOOKUP_S", 0.05)
    monkeypatch.setattr(discovery.socket, "getaddrinfo", lambda *_, **__: released.wait(30) and [])
    discovery._last_found.clear()
    assert addresses_of(NAME) == []
    released.set()


def test_a_list_is_taken_as_it_is_without_doubles_and_the_own_address():
    listed = ["127.0.0.1:7071", "127.0.0.1:7072", "127.0.0.1:7071", "[::1]:7071", "10.255.0.9:7071"]
    assert addresses_of(listed, own_port=7071) == ["127.0.0.1:7072", *listed[4:]] or not socket.has_ipv6
    assert own_ports(listed)[:3] == [7071, 7072, 7071]
    assert own_ports(NAME) == [7070]


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:7070", "host:٣"])
def test_what_is_no_address_is_named(address):
    with pytest.raises(OptionError, match="no address of a peer"):
        split_address(address)


def test_peers_in_the_environment_are_a_name_or_have_commas(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS", "a:1, b:2")
    assert streamer.Options().filled_from_environment().peers == ("a:1", "b:2")
    assert streamer.Options(peers="").filled_from_environment().peers == ""
    monkeypatch.setenv("STREAMER_PEERS", NAME)
    assert streamer.Options().filled_from_environment().peers == NAME


@pytest.mark.parametrize("peers", ["host", ["host"], 7, [7], {"a:1": 2}])
def test_peers_that_are_no_addresses_are_an_error_of_options(peers):
    with pytest.raises(OptionError, match="peers must be addresses"):
        streamer.Options(peers=peers)


def test_a_process_outside_of_ray_is_told_so():
    with pytest.raises(UsageError, match="Ray"):
        addresses_of("ray")


def test_a_name_without_addresses_is_said(caplog):
    assert addresses_of("dns:no-such-host.invalid:7070") == []
    assert "no peer is known" in caplog.text
