"""Logins of registries, from the files of Docker and Podman and from their credential helpers.

Guarantees: a helper that does not answer is ended after `HELPER_S`. A file that cannot be read is an error, because
without it the registry would only say that access is denied. No text of a file or of a helper enters a message.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamer.plugins import CredentialsError, OptionError, note_credential
from streamer_stores import check_texts, checked_token
from streamer_stores.oci.reference import Reference

HELPER_S = 20.0  # a helper may ask a cloud for a token
HELPER_BYTES = 1 << 20  # of its answer
_HELPER = re.compile(r"[\w.-]+")
_HUB_KEY = "index.docker.io/v1"


@dataclass(frozen=True)
class Login:
    """A login for one registry; without any text, requests are anonymous."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)  # exchanged for tokens at the registry's token service
    registry_token: str = field(default="", repr=False)  # sent to the registry as it is

    @property
    def basic(self) -> str | None:
        """The value of the header ``Authorization`` with user and password."""
        if not self.username:
            return None
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def check_login_options(options: Mapping[str, Any]) -> None:
    """Refuse login options if one of them would be ignored."""
    check_texts(options, ("auth_file", "password", "platform", "token", "username", "verify"))
    given = {name for name in ("username", "password", "token") if options.get(name)}
    if given not in ({"username", "password"}, {"token"}, set()):
        raise OptionError("A login is username and password, or token alone")


def login_of(reference: Reference, options: Mapping[str, Any]) -> Login:
    """Find the login: in the options, else in the files of Docker and Podman; anonymous if there is none."""
    if options.get("token"):
        return _noted(Login(registry_token=options["token"]))
    if options.get("username"):
        return _noted(Login(options["username"], options.get("password", "")))
    for path in [Path(options["auth_file"])] if options.get("auth_file") else _files():
        login = _login_in(_document_of(path), reference, path)
        if login is not None:
            return _noted(login)
    return Login()


def _noted(login: Login) -> Login:
    for text in (login.password, login.identity_token):
        note_credential(text)
    return replace(login, registry_token=checked_token(login.registry_token, "the registry"))


def _files() -> Iterator[Path]:
    """Yield the files that exist, in Podman's order, which ends with that of Docker."""
    if os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(os.environ["REGISTRY_AUTH_FILE"])
        return
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    docker = os.environ.get("DOCKER_CONFIG") or "~/.docker"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [f"{runtime}/containers/auth.json"] if runtime else []
    for place in (*places, f"{config}/containers/auth.json", f"{docker}/config.json"):
        path = Path(place).expanduser()
        if path.is_file():
            yield path


def _document_of(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict):
        what = f"The logins of registries in {path} cannot be read"
        raise CredentialsError(what, hint="Log in again (docker login, podman login), or name another with auth_file")
    return document


def _login_in(document: Mapping[str, Any], reference: Reference, path: Path) -> Login | None:
    """Find the login of the longest name that the repository begins with; helpers come first, as in Docker."""
    keys = list(_keys_of(reference))
    for section in ("credHelpers", "auths"):
        listed = document.get(section) or {}
        if not isinstance(listed, dict):
            raise CredentialsError(f"{section} in {path} is malformed", hint="Log in again")
        entries = {_plain(name): entry for name, entry in listed.items()}
        for key in keys:
            if key not in entries:
                continue
            if section == "credHelpers":
                login = _from_helper(str(entries[key]), key)
            else:
                login = _from_entry(entries[key], path)
            if login is not None:
                return login
    store = document.get("credsStore")
    return _from_helper(str(store), _HUB_KEY if reference.is_of_hub else reference.host) if store else None


def _keys_of(reference: Reference) -> Iterator[str]:
    parts = [reference.host, *reference.repository.split("/")]
    for count in range(len(parts), 0, -1):
        yield "/".join(parts[:count])
    if reference.is_of_hub:
        yield from (_HUB_KEY, "index.docker.io", "docker.io")


def _plain(name: str) -> str:
    """Return a key of a file as Podman writes it: Docker's may have a scheme and the version of the API."""
    text = re.sub(r"^https?://", "", str(name)).rstrip("/")
    return text if text == _HUB_KEY else re.sub(r"/v[12]$", "", text)


def _from_entry(entry: Any, path: Path) -> Login | None:
    if not isinstance(entry, dict):
        return None
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        try:
            username, _, password = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise CredentialsError(f"A login in {path} is malformed", hint="Log in again") from None
    identity, token = str(entry.get("identitytoken") or ""), str(entry.get("registrytoken") or "")
    login = Login(username, password.rstrip("\0"), identity, token)
    return login if login != Login() else None


def _from_helper(name: str, key: str) -> Login | None:
    """Ask a credential helper; None if it has no login for the registry."""
    if not _HELPER.fullmatch(name):
        raise CredentialsError("The name of a credential helper is malformed", hint="Check Docker's config.json")
    program = f"docker-credential-{name}"
    url = f"https://{key}/" if key == _HUB_KEY else key
    pipe = subprocess.PIPE
    try:
        # Its own session, so that the programs that it has started end with it.
        helper = subprocess.Popen(
            [program, "get"], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        hint = "Install it, or log in without it"
        raise CredentialsError(f"The credential helper {program} cannot be started", hint=hint) from error
    with helper:
        try:
            text = _answer_of(helper, url.encode())
        except (subprocess.TimeoutExpired, OverflowError) as error:
            with suppress(ProcessLookupError):
                os.killpg(helper.pid, signal.SIGKILL)
            is_late = isinstance(error, subprocess.TimeoutExpired)
            fault = f"did not answer within {HELPER_S:g} s" if is_late else f"answered more than {HELPER_BYTES} bytes"
            hint = "Run it yourself: it may want an answer from you"
            raise CredentialsError(f"The credential helper {program} {fault}", hint=hint) from None
    if helper.returncode:
        if b"not found" in text.lower():
            return None
        raise CredentialsError(f"The credential helper {program} failed", hint=f"Run `echo {url} | {program} get`")
    try:
        found = json.loads(text)
        username, secret = found["Username"], found["Secret"]
    except (ValueError, KeyError, TypeError):
        username = secret = None
    if not isinstance(username, str) or not isinstance(secret, str):
        raise CredentialsError(f"The answer of the credential helper {program} is malformed") from None
    return Login(identity_token=secret) if username == "<token>" else Login(username, secret)


def _answer_of(helper: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Return what a helper prints until it ends; raises TimeoutExpired, or OverflowError for more than an answer."""
    assert helper.stdin is not None
    assert helper.stdout is not None
    end_s, text = time.monotonic() + HELPER_S, b""
    with suppress(BrokenPipeError), helper.stdin:  # it may not read the question
        helper.stdin.write(question)
    with selectors.DefaultSelector() as selector:
        selector.register(helper.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, end_s - time.monotonic())):
            piece = os.read(helper.stdout.fileno(), HELPER_BYTES)
            text += piece
            if len(text) > HELPER_BYTES:
                raise OverflowError
            if not piece:
                helper.wait(max(0.0, end_s - time.monotonic()))
                return text
    raise subprocess.TimeoutExpired(helper.args, HELPER_S)
