"""Makes sessions of botocore that ignore blank variables and share the data of botocore's own files.

Guarantees: a session behaves like botocore's own, except that blank variables and blank lines of a profile are ignored.
botocore itself uses many of these blank values: old releases read a blank path of the certificates as "do not verify".
The session uses ``SSL_CERT_FILE`` as the engine does, although botocore ignores it. Without sharing, each session
parses its own copy of botocore's model of S3 and of all endpoints, which takes 60 ms and 13 MB. The session also parses
the times in answers faster than botocore.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache, partial
from threading import RLock
from typing import Any

from botocore import configprovider
from botocore.exceptions import CredentialRetrievalError
from botocore.loaders import create_loader
from botocore.session import Session
from botocore.utils import parse_timestamp

from streamer.backends.login_state import login_state
from streamer.backends.metadata_servers import ask_aws_directly
from streamer.backends.private_names.storage_clients import (
    change_credential_provider,
    give_environment,
    give_process_starter,
)
from streamer.core.outages.counters import awaiting_login
from streamer.core.secrets.environment import is_blank, set_variables

PROCESS_TIMEOUT_S = 60
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", re.ASCII)  # as S3 writes it


class SkipsBlanks(Session):  # type: ignore[misc]  # botocore has no types
    """Extends botocore's session. Equal logins have an equal `repr`, because fsspec compares sessions by it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(**options)
        self._login = login_state()
        environment = set_variables()
        _ignore_blanks(self, environment)
        change_credential_provider(self, partial(_with_credentials_of, environment))
        self.register_component("data_loader", _loader(self.get_config_variable("data_path")))
        self.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({hash(self._login):#x})"


class EnvironmentSession(SkipsBlanks):
    """A session of the current environment and files, which several threads may use."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._lock = RLock()
        super().__init__(options)

    def get_credentials(self) -> Any:
        """Return the credentials; only the first call looks them up."""
        with self._lock:
            return super().get_credentials()

    def create_client(self, *names: str, **arguments: Any) -> Any:
        """Make a client, as botocore does."""
        with self._lock:
            return super().create_client(*names, **arguments)


class _SetLine(configprovider.BaseProvider):  # type: ignore[misc]  # botocore has no types
    """Provides the value of one line of the profile; a blank line counts as missing."""

    def __init__(self, name: Any, session: Any) -> None:
        self._line = configprovider.ScopedConfigProvider(name, session)
        self._arguments = (name, session)

    def __deepcopy__(self, memo: Any) -> _SetLine:
        return _SetLine(*self._arguments)  # botocore copies its providers; the session stays shared

    def provide(self) -> Any:
        value = self._line.provide()
        return None if is_blank(value) else value


def _ignore_blanks(session: Any, environment: Mapping[str, str]) -> None:
    """Replace botocore's configuration providers by providers that skip blank variables and lines."""
    store = session.get_component("config_store")
    table = configprovider.BOTOCORE_DEFAUT_SESSION_VARIABLES  # botocore's own spelling
    for name, provider in _providers(session, environment, table).items():
        store.set_config_provider(name, provider)
    of_s3 = _providers(session, environment, configprovider.DEFAULT_S3_CONFIG_VARS)
    store.set_config_provider("s3", configprovider.SectionConfigProvider("s3", session, of_s3))
    bundles = (
        configprovider.EnvironmentProvider("AWS_CA_BUNDLE", environment),
        configprovider.EnvironmentProvider("SSL_CERT_FILE", environment),
        _SetLine("ca_bundle", session),
        configprovider.EnvironmentProvider("REQUESTS_CA_BUNDLE", environment),
        configprovider.ConstantProvider(True),
    )
    store.set_config_provider("ca_bundle", configprovider.ChainProvider(bundles))


def _providers(session: Any, environment: Mapping[str, str], table: Mapping[str, Any]) -> dict[str, Any]:
    """Make the providers of one of botocore's tables. A table has a row for each name."""
    providers = {}
    for name, (lines, variables, default, convert) in table.items():
        chain: list[Any] = [configprovider.InstanceVarProvider(name, session)]
        chain += [configprovider.EnvironmentProvider(each, environment) for each in _several(variables)]
        chain += [_SetLine(each, session) for each in _several(lines)]
        chain += [] if default is None else [configprovider.ConstantProvider(default)]
        providers[name] = configprovider.ChainProvider(chain, convert)
    return providers


def _several(names: Any) -> list[Any]:
    return names if isinstance(names, list) else [] if names is None else [names]


def _with_credentials_of(environment: Mapping[str, str], chain: Any) -> Any:
    give_environment(chain, environment)
    ask_aws_directly(chain)
    give_process_starter(chain, lambda profile: partial(_CredentialProcess, profile))
    return chain


class _CredentialProcess(subprocess.Popen[bytes]):
    """A ``credential_process``, which has a minute, as in other SDKs of AWS; its arguments may hold secrets."""

    def __init__(self, profile: str, command: list[str], **streams: Any) -> None:
        self._label = f"the credential_process {command[0]!r} of the AWS profile {profile!r}"
        super().__init__(command, **streams)

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:  # noqa: A002
        """Return what the process writes."""
        try:
            with awaiting_login(self._label):
                return super().communicate(input, timeout or PROCESS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with self:  # ends its streams, and waits
                self.kill()
            error = CredentialRetrievalError(provider="custom-process", error_msg="it did not end")
            error.source = f": {self._label} did not end within {PROCESS_TIMEOUT_S} s"
            raise error from None


def _time(value: Any) -> datetime:
    """Parse a time in an answer. A listing has one for each object, and botocore's parser takes 0.3 ms for each."""
    if isinstance(value, str) and _ISO_TIME.fullmatch(value):
        return datetime.fromisoformat(f"{value[:-1]}+00:00")
    parsed: datetime = parse_timestamp(value)
    return parsed


@lru_cache(maxsize=4)  # a process usually has one path
def _loader(data_path: str | None) -> Any:
    """Return the loader for one ``AWS_DATA_PATH``; sessions can share it because they only read its data."""
    return create_loader(data_path)
