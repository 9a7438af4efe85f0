"""Which failures of a storage are worth another attempt."""

from __future__ import annotations

import errno

from each_row import each_row

from streamer.core import errors
from streamer.core.outages.transient import is_transient


class StatusError(Exception):
    """As aiohttp's and azure's."""

    def __init__(self, status):
        self.status = status


PASSING = [
    ConnectionResetError(),
    TimeoutError(),
    OSError(errno.EHOSTUNREACH, "no route"),
    BlockingIOError(errno.EAGAIN, "try again"),
    errors.ConnectError("refused"),
    errors.TransferTimeoutError("late"),
    errors.HttpStatusError("busy", status=503),
    StatusError(429),
]
STAYING = [
    ValueError(),
    FileNotFoundError(errno.ENOENT, "gone"),
    OSError(errno.EIO, "broken"),
    errors.TlsError("certificate"),
    errors.HttpStatusError("bad request", status=400),
    errors.ChangedError("another one"),
    errors.TruncatedError("short"),
    errors.CredentialsError("no", status=401),
    StatusError(404),
]


@each_row("error", PASSING)
def test_what_may_pass(error):
    assert is_transient(error)


@each_row("error", STAYING)
def test_what_will_not(error):
    assert not is_transient(error)
