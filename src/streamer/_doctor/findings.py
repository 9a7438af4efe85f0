"""Lines of a report, and probes. A probe ends at its deadline at the latest, and gives one line or more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from streamer.core import errors
from streamer.core.outages.transient import UNKNOWN_HOST
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel

State = Literal["ok", "slow", "broken", "unknown"]
Result = TypeVar("Result")

# The first class that fits names the line of an error.
_LINES: tuple[tuple[type[errors.StreamerError], str], ...] = (
    (errors.UnknownSchemeError, "scheme"),
    (errors.OptionError, "options"),
    (errors.TlsError, "certificates"),
    (errors.ConnectError, "server"),
    (errors.TransferTimeoutError, "server"),
    (errors.CredentialsError, "credentials"),
    (errors.AccessDeniedError, "permissions"),
    (errors.MissingShardError, "checkpoint"),
    (errors.FormatError, "checkpoint"),
    (errors.TruncatedError, "checkpoint"),
    (errors.ObjectNotFoundError, "place"),
    (errors.RangeResponseError, "ranges"),
)
_LINES_OF_CODES = {
    UNKNOWN_HOST: "names",
    "RequestTimeTooSkewed": "clock",
    "PermanentRedirect": "region",
    "AuthorizationHeaderMalformed": "region",
    "IllegalLocationConstraintException": "region",
}
_ADVICE = {
    "scheme": "Check the part before :// and install the extra that serves it: python -m streamer plugins",
    "certificates": "Name the file of your certificate authority in SSL_CERT_FILE",
    "server": "Check the host and the port of the endpoint, and firewalls on the way",
    "place": "Check the bucket and the path: python -m streamer ls",
}


@dataclass(frozen=True)
class Finding:
    """One line."""

    name: str
    state: State
    found: str
    why: str = ""  # why it matters
    advice: str = ""  # what to do, unless the state is ok

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        advice = f". {self.advice}" if self.advice and self.state != "ok" else ""
        return f"{self.state:7}  {self.name}: {self.found}{why}{advice}"


def in_time(call: Callable[[], Result], deadline_s: float) -> Result:
    """Call a function on another thread; raises `AnswerTimeoutError` if it does not return in time."""
    return in_parallel(lambda _: call(), [None], role="probe", give_up_at=time.monotonic() + deadline_s)[0]


def probed(name: str, probe: Callable[[], Iterable[Finding]], deadline_s: float) -> list[Finding]:
    """Run a probe; one that fails, or does not end in time, is a finding, too."""
    try:
        return in_time(lambda: list(probe()), deadline_s)
    except AnswerTimeoutError:
        return [Finding(name, "broken", f"no answer in {deadline_s:g} s", advice="Raise --timeout, or see who hangs")]
    except errors.StreamerError as error:
        return [finding_of(error)]
    except Exception as error:  # a probe must not end the report
        return [Finding(name, "unknown", f"{type(error).__name__}: {error}")]


def finding_of(error: errors.StreamerError) -> Finding:
    """Return the line of an error, with its own hint as advice."""
    code = error.code if isinstance(error, errors.StorageError) else None
    name = _LINES_OF_CODES.get(code or "") or next((line for kind, line in _LINES if isinstance(error, kind)), "access")
    if isinstance(error, errors.StorageError) and error.is_of_proxy:
        name = "proxy"
    status = f"HTTP {error.status}" if isinstance(error, errors.StorageError) and error.status else ""
    facts = ", ".join(filter(None, (status, code)))
    found = f"{error.message.rstrip('.')} ({facts})" if facts else error.message.rstrip(".")
    return Finding(name, "broken", found, advice=error.hint or _ADVICE.get(name, ""))
