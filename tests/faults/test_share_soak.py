"""Processes share a checkpoint while some of them are killed, stopped, late or slow, or leave: no process gets a wrong
byte, and none hangs."""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from node_load import NodeLoad
from safetensors.numpy import save
from servers.scripted_http import ScriptedServer
from servers.tcp_proxy import TcpProxy, http_requests

MIB = 1 << 20
PROCESSES = 4
ROUNDS = int(os.environ.get("SHARE_SOAK_ROUNDS", "3"))


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray[Any, Any]]:
    drawn = np.random.default_rng(11)
    return {f"t{number}": drawn.integers(0, 255, (512, 512), dtype=np.uint8) for number in range(40)}


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_whatever_happens_to_others_a_load_ends_with_the_right_bytes(tensors, seed):
    draw = random.Random(seed)
    expected = {name: zlib.crc32(tensor) for name, tensor in tensors.items()}
    with ScriptedServer(save(tensors)) as server, ExitStack() as stack:
        rate = draw.choice([8, 16, 64]) * MIB
        proxy = stack.enter_context(TcpProxy(server.port, http_requests, bytes_per_s=rate))
        uri = server.url.replace(str(server.port), str(proxy.port))
        hows = [drawn_options(draw) for _ in range(PROCESSES)]
        loads = [stack.enter_context(NodeLoad(uri, storage_options={}, share="node", **how)) for how in hows]
        for load in loads:
            load.expect("ready")
        killed = trouble(draw, loads)
        for load, how in zip(loads, hows, strict=True):
            if load not in killed:
                check(load.result(), expected, how)


def drawn_options(draw: random.Random) -> dict[str, Any]:
    return {
        "memory_limit_bytes": draw.choice([MIB, 4 * MIB, 64 * MIB]),
        "pause_s": draw.choice([0, 0, 0.02, 0.1]),
        "leave_after": draw.choice([None, None, None, 3]),
        "names": draw.choice([None, None, ["t1*"], ["t2*", "t30"]]),
    }


def trouble(draw: random.Random, loads: list[NodeLoad]) -> list[NodeLoad]:
    """Begin all loads, and do things to some; return those that were killed."""
    stopped: list[NodeLoad] = []
    killed: list[NodeLoad] = []
    for load in loads:
        load.go()
        time.sleep(draw.choice([0, 0, 0.2, 0.5]))
    for _ in range(draw.randint(1, 4)):
        time.sleep(draw.uniform(0, 0.6))
        load = draw.choice(loads)
        act = draw.choice(["kill", "stop", "stop", "go on"])
        if act == "kill" and len(killed) < 2 and load not in killed:
            load.process.kill()
            killed.append(load)
        elif act == "stop" and load not in killed:
            load.process.send_signal(signal.SIGSTOP)
            stopped.append(load)
        elif stopped:
            stopped.pop(0).process.send_signal(signal.SIGCONT)
    time.sleep(draw.choice([0, 1.5, 3.0]))
    for load in stopped:
        load.process.send_signal(signal.SIGCONT)
    return killed


def check(result: dict[str, Any], expected: dict[str, int], how: dict[str, Any]) -> None:
    assert result["error"] is None
    wanted = expected
    if how["names"] is not None:
        beginnings = tuple(each.rstrip("*") for each in how["names"])
        wanted = {name: crc for name, crc in expected.items() if name.startswith(beginnings)}
    if how["leave_after"] is None:
        assert result["tensors"] == wanted
    else:
        assert result["tensors"].items() <= wanted.items()
