"""Logins that loads with equal options share, so that one token serves them all.

Guarantees: after a change of the environment or of a file of credentials, a load does not use a login from before the
change. The last `KEPT` logins are kept; they hold no connection.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamer.backends.gcs.credentials import GoogleLogin
from streamer.backends.login_state import key_of, login_state
from streamer.core.secrets.options import SecretOptions, plain

__all__ = ["LOGINS"]

KEPT = 8  # a job uses a few logins in turn
OPTIONS = ("access", "key_file", "project", "token")


class Logins:
    """Keeps logins by their options; any thread may call it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: OrderedDict[Hashable, GoogleLogin] = OrderedDict()

    def of(self, options: Mapping[str, Any]) -> GoogleLogin:
        """Return the login that arguments of gcsfs name; with ``skip_instance_cache`` it is a new one.

        Raises:
            Exception: any exception of `GoogleLogin`.
        """
        own = SecretOptions({name: options[name] for name in OPTIONS if options.get(name) is not None})
        if options.get("skip_instance_cache"):
            return GoogleLogin(**plain(own))
        key = _Key(key_of(own), login_state())
        with self._guard:
            kept = self._kept.get(key)
        login = kept or GoogleLogin(**plain(own))
        with self._guard:
            login = self._kept.setdefault(key, login)  # another thread may have been faster
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return login

    def forget(self, login: GoogleLogin) -> None:
        """Let the next load with the same options look for credentials again."""
        with self._guard:
            for key in [key for key, each in self._kept.items() if each is login]:
                del self._kept[key]

    def clear(self) -> None:
        """Forget all logins."""
        self.__init__()  # type: ignore[misc]


@dataclass(frozen=True)
class _Key:
    """Equal for equal options and credentials; its `repr` shows neither."""

    options: Hashable = field(repr=False)
    state: Hashable = field(repr=False)


LOGINS = Logins()
os.register_at_fork(after_in_child=LOGINS.clear)  # another thread may hold the guard
