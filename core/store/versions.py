"""Decides whether a version tells the bytes of an object apart from all others, and whether two versions are the same.

Many storages know only the time of an object's last change, in whole seconds: nginx makes its ETag of this time and the
size; other servers send only ``Last-Modified``; SFTP, WebDAV and some mounted file systems have no finer times. If such
an object is replaced within that second by one of equal size, its version stays. So such a version says nothing while
it is young. Once it is two seconds old, each later change gives another version.

What no rule can notice: a program that replaces an object and then sets its time back.
"""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

YOUNG_S = 2.0  # two ticks of a second: the file system's clock may lag behind the one that the server shows
# How far this machine's clock may be from that of a storage that does not show its own.
MOST_SKEW_S = 60.0
_SET_BY_HAND_S = 86400.0  # a time that lies further in the future is no clock's

_DIGITS = re.compile(r"[0-9A-Fa-f]{8,16}|[0-9]{10,19}")
_UNITS = (1, 10**3, 10**6, 10**9)  # seconds to nanoseconds


def settled_at(version: str | None, *, changed_at_s: float | None = None, now_s: float | None = None) -> float:
    """Return the time (by `time.monotonic`) from which on a version that is looked up again tells bytes apart.

    It is 0 if the version does so now, and infinite if it never does: a weak ETag (RFC 9110, 8.8.1) of unknown age.

    Example:
        >>> settled_at('"9b2cf535f27731c974343645a3985328"'), settled_at('W/"1"'), settled_at('"1"', changed_at_s=5)
        (0.0, inf, 0.0)
    """
    now = time.time() if now_s is None else now_s
    if changed_at_s is None:
        if version is not None and version.startswith("W/"):
            return math.inf
        changed_at_s = _young_second_in(version or "", now)
    if changed_at_s is None:
        return 0.0
    left_s = changed_at_s + YOUNG_S - now
    if now_s is None and left_s > -MOST_SKEW_S:
        left_s = YOUNG_S
    return time.monotonic() + min(left_s, YOUNG_S) if left_s > 0 else 0.0


def is_same_version(one: str | None, other: str | None) -> bool:
    """Compare two versions weakly (RFC 9110, 8.8.3.2): a server may call an ETag weak only while it is young.

    A time beside a weak ETag is compared only with another time. Some servers leave out the quotes in some answers.

    Example:
        >>> is_same_version('W/"1"', '"1"'), is_same_version('W/"1" Sat, 1', '"1"'), is_same_version('"1"', '"2"')
        (True, True, False)
        >>> is_same_version('W/"1"', "1"), is_same_version("2", '"1"'), is_same_version('W/"1" Sat, 1', "Sat, 1")
        (True, False, False)
        >>> is_same_version('W/"1" Sat, 1', 'W/"1" Sat, 2')
        False
    """
    if one is None or other is None or one == other:
        return one == other
    if ('"' in one) != ('"' in other):
        return one.removeprefix("W/").strip('"') == other.removeprefix("W/").strip('"')
    (tag, _, time_of), (other_tag, _, other_time) = (each.removeprefix("W/").rpartition('"') for each in (one, other))
    return tag == other_tag and (time_of == other_time or (tag != "" and "" in (time_of, other_time)))


def seconds_of(text: str | None) -> float | None:
    """Return the Unix time that a text is, as a date of a header, an ISO date or a number; None for any other text.

    Example:
        >>> seconds_of("Thu, 01 Jan 1970 00:00:07 GMT"), seconds_of("1970-01-01 00:00:07"), seconds_of("7.5")
        (7.0, 7.0, 7.5)
    """
    for read in (float, _seconds_of_date, _seconds_of_iso_date):
        try:
            return read(text or "")
        except (TypeError, ValueError, OverflowError):
            pass
    return None


def _young_second_in(version: str, now_s: float) -> float | None:
    """Return the time in a version if it is a recent one in whole seconds; None if there is none, or a finer one."""
    recent = [each for each in _times_in(version) if now_s - MOST_SKEW_S - YOUNG_S < each < now_s + _SET_BY_HAND_S]
    return max(recent) if recent and all(each == int(each) for each in recent) else None


def _times_in(version: str) -> list[float]:
    """Return what may be a time in a version: a date, a number of seconds, or decimal or hexadecimal digits."""
    when = seconds_of(version)
    if when is not None:
        return [when]
    digits = _DIGITS.findall(version)
    numbers = [int(each, 16) for each in digits] + [int(each) for each in digits if each.isdigit()]
    return [number / unit for number in numbers for unit in _UNITS]


def _seconds_of_date(text: str) -> float:
    return _timestamp(parsedate_to_datetime(text))


def _seconds_of_iso_date(text: str) -> float:
    return _timestamp(datetime.fromisoformat(text.replace("Z", "+00:00")))


def _timestamp(when: datetime) -> float:
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()
