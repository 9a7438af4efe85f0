"""The state of logins outside of options: credentials, proxies and trusted certificates in environment and files.

A file system reads the environment and the user's files once. A load must not use a file system from before a change:
in a notebook, the user corrects the secret and loads again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from streamer.core.secrets.environment import set_variables, variable
from streamer.core.store.identities import digest_of

_PREFIXES = ("AWS_", "AZURE_", "BOTO_", "CLOUDSDK_", "GOOGLE_", "CURL_CA_", "REQUESTS_CA_", "SSL_CERT_")
_PROXY = "_PROXY"  # the end of the names of variables of proxies, in either case
# The variables that name files, and the usual path of each file.
_LOGINS = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
    "GOOGLE_APPLICATION_CREDENTIALS": "~/.config/gcloud/application_default_credentials.json",
}
_FILES = {
    **_LOGINS,
    **dict.fromkeys(("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), ""),
}


def login_state() -> Hashable:
    """Return a value that stays equal until the environment or a file changes; it holds no secret itself."""
    return _digest_of_variables(), tuple(_states_of_files())


def login_identity(options: Mapping[str, Any]) -> str:
    """Return a digest of everything that names a login: options, environment and files.

    It is the same in each process whose login is named alike, and stays when temporary keys of it are renewed. It is
    empty if an option is an object, which another process cannot have.
    """
    return digest_of(options, _digest_of_variables().hex(), list(_contents_of_files()))


def _digest_of_variables() -> bytes:
    digest = hashlib.sha256()
    variables = set_variables()
    for name in sorted(variables):
        if name.startswith(_PREFIXES) or name.upper().endswith(_PROXY):
            digest.update(f"{name}={variables[name]}\0".encode(errors="surrogateescape"))
    return digest.digest()


def _states_of_files() -> Iterator[tuple[int, int, int] | None]:
    for name, usual in _FILES.items():
        try:
            status = os.stat(os.path.expanduser(variable(name) or usual))
        except (OSError, ValueError):
            yield None
        else:
            yield status.st_ino, status.st_size, status.st_mtime_ns


def _contents_of_files() -> Iterator[bytes | None]:
    for name, usual in _LOGINS.items():
        try:
            with open(os.path.expanduser(variable(name) or usual), "rb") as file:
                yield hashlib.sha256(file.read()).digest()
        except (OSError, ValueError):
            yield None


def key_of(value: Any) -> Hashable:
    """Return a key that compares plain values by value, and all others (credentials, sessions) by identity.

    fsspec compares the text of objects, but two different logins may have equal texts.
    """
    if isinstance(value, Mapping):
        return ("mapping", frozenset((name, key_of(each)) for name, each in value.items()))
    if isinstance(value, (list, tuple)):
        return ("sequence", tuple(key_of(each) for each in value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))  # its owner holds the object, so that no other object gets its id
    return (type(value), value)
