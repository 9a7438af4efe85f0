"""Signs of life between the processes of a meeting, and when their absence means that a process was stopped.

A thread that gets no processor in time allows the others more time, too: a busy machine delays them as well.
"""

from __future__ import annotations

__all__ = ["PULSE_S", "Pulse"]

PULSE_S = 0.2  # between two signs of life
SILENCE_S = 1.0  # a process that is silent for longer counts as stopped, unless this process is delayed itself
MOST_DELAY_S = 0.5  # longer delays count as this: a process that was stopped itself must not wait for minutes
DELAYS_ALLOWED = 10.0  # a process allows others, in addition, this many times its own delay
DECAY = 0.9  # factor of the delay, from one sign of life to the next


class Pulse:
    """The signs of life of one thread.

    Args:
        now: Time of the monotonic clock.

    Example:
        >>> pulse = Pulse(7.0)
        >>> pulse.is_due(7.0), pulse.is_due(7.1), pulse.silence_s
        (True, False, 1.0)
        >>> pulse.is_due(7.4), round(pulse.silence_s, 3)
        (True, 3.0)
    """

    def __init__(self, now: float) -> None:
        self._due, self._delay_s = now, 0.0

    def is_due(self, now: float) -> bool:
        """Whether to give a sign of life now; the next one is due a little later."""
        if now < self._due:
            return False
        self._delay_s = min(MOST_DELAY_S, max(now - self._due, DECAY * self._delay_s))
        self._due = now + PULSE_S
        return True

    def wait_s(self, now: float) -> float:
        """Return the time until the next sign of life."""
        return max(0.0, self._due - now)

    @property
    def silence_limit_s(self) -> float:
        """How long a reader waits for a block before it asks the leader for help."""
        return self.silence_s / 2

    @property
    def silence_s(self) -> float:
        """How long another process may be silent."""
        return SILENCE_S + DELAYS_ALLOWED * self._delay_s
