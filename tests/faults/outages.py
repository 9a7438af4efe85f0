"""Every outage by name: what happens to a whole server, where a fault of the catalogue happens to one answer.

An outage is a story, told to a `Scene` in the order in which it happens; `pause` is how long it lasts. It begins when
the scene's proxy has passed on so many bytes, at once and exactly there: so a load meets it in its middle, however
fast the machine is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from servers.tcp_proxy import TcpProxy

from faults.catalogue import ERROR

OTHER_ADDRESS = "127.0.0.2"


@dataclass(frozen=True)
class Scene:
    """Where an outage happens.

    Attributes:
        proxy: In front of the server; the only way to it.
        server: What an outage does more to than to let nobody through: kill it, renew its certificate, and so on.
        hosts: The hosts file that names the proxy's address.
    """

    proxy: TcpProxy
    server: Any = None
    hosts: Path | None = None


Story = Callable[[Scene, Callable[[], object]], None]


@dataclass(frozen=True)
class Outage:
    """One kind of outage.

    Attributes:
        name: How the command line and the tests call it.
        story: What happens.
        ends: Name of the error class a load ends with if it lasts too long.
        needs: What it asks of the scene beside a proxy: names of methods of the server, or ``hosts``.
    """

    name: str
    story: Story
    ends: str
    needs: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return (self.story.__doc__ or "").strip()


OUTAGES: dict[str, Outage] = {}


def outage(ends: str, *needs: str) -> Callable[[Story], Story]:
    """Enter a story into the catalogue under its own name."""

    def enter(story: Story) -> Story:
        OUTAGES[story.__name__] = Outage(story.__name__, story, ends, needs)
        return story

    return enter


@outage("ConnectError")
def gone(scene: Scene, pause: Callable[[], object]) -> None:
    """Refuse connections and reset the open ones, then listen again at the same port."""
    scene.proxy.leave()
    pause()
    scene.proxy.come_back()


@outage("ConnectError")
def reset_wave(scene: Scene, pause: Callable[[], object]) -> None:
    """Reset every open connection, and each later one when its first request comes."""
    scene.proxy.reset()
    pause()
    scene.proxy.pass_on()


@outage("HttpStatusError")
def throttle_wave(scene: Scene, pause: Callable[[], object]) -> None:
    """Answer 503 SlowDown to every request."""
    scene.proxy.refuse(*_refusal("503 Slow Down", b"SlowDown"))
    pause()
    scene.proxy.pass_on()


@outage("HttpStatusError")
def busy_wave(scene: Scene, pause: Callable[[], object]) -> None:
    """Answer 429 with Retry-After: 1 to every request."""
    scene.proxy.refuse(*_refusal("429 Too Many Requests", b"TooManyRequests", "Retry-After: 1"))
    pause()
    scene.proxy.pass_on()


@outage("ConnectError", "kill", "restart")
def killed(scene: Scene, pause: Callable[[], object]) -> None:
    """Kill the server (SIGKILL), and start it again at the same port with the same data."""
    scene.proxy.leave()
    scene.server.kill()
    pause()
    scene.server.restart()
    scene.proxy.come_back()


@outage("ConnectError", "kill", "restart", "renew_certificate")
def certificate_renewed(scene: Scene, pause: Callable[[], object]) -> None:
    """Kill the server and start it again with another key and certificate of the same authority."""
    scene.proxy.leave()
    scene.server.kill()
    scene.server.renew_certificate()
    pause()
    scene.server.restart()
    scene.proxy.come_back()


@outage("ConnectError", "expire_signatures")
def expiry_in_outage(scene: Scene, pause: Callable[[], object]) -> None:
    """Be gone, and come back when every signature given so far has expired."""
    scene.proxy.leave()
    scene.server.expire_signatures()
    pause()
    scene.proxy.come_back()


@outage("ConnectError", "hosts")
def dns_change(scene: Scene, pause: Callable[[], object]) -> None:
    """Be gone, and come back at another address, which the name stands for from then on."""
    assert scene.hosts is not None
    scene.proxy.leave()
    pause()
    scene.proxy.come_back(OTHER_ADDRESS)
    scene.hosts.write_text(scene.hosts.read_text().replace("127.0.0.1", OTHER_ADDRESS))


class Planned:
    """An outage that happens once so many bytes have passed; leaving the ``with`` block ends it early.

    Args:
        name: Which, of `OUTAGES`.
        scene: Where.
        at_bytes: After how many bytes of answers.
        lasts_s: How long; None: until `end`.

    Attributes:
        name: Which it is.
        proxy: The way to the server.
        began: Set when it began, at `began_at` of the monotonic clock.
        over: Set when it is over, at `over_at`.
    """

    def __init__(self, name: str, scene: Scene, at_bytes: int, lasts_s: float | None) -> None:
        self.name, self._scene, self._lasts_s = name, scene, lasts_s
        self.proxy, self.began_at, self.over_at = scene.proxy, 0.0, 0.0
        self.began, self.over, self._enough = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._happen, name="outage", daemon=True)
        scene.proxy.when_passed(at_bytes, self._thread.start)

    def __enter__(self) -> Planned:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End the outage now, if it has begun; wait until it is over."""
        self._enough.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _happen(self) -> None:
        OUTAGES[self.name].story(self._scene, self._pause)
        self.over_at = time.monotonic()
        self.over.set()

    def _pause(self) -> None:
        self.began_at = time.monotonic()
        self.began.set()
        self._enough.wait(self._lasts_s)


def _refusal(status: str, code: bytes, *headers: str) -> tuple[bytes, bytes]:
    body = ERROR % (code, b"Please reduce your request rate.")
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/xml", *headers]
    return "\r\n".join([*lines, "", ""]).encode(), body
