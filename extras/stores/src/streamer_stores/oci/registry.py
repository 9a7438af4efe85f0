"""Requests to one repository of a registry, with its login.

Guarantees: user and password go to the registry and to the token service that it names, never from TLS to plain HTTP;
tokens go to the registry alone. A refused token is exchanged once, so a registry that refuses each ends in an error. A
manifest has the digest that names it.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md
https://distribution.github.io/distribution/spec/auth/token/
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from streamer.plugins import (
    ChecksumError,
    CredentialsError,
    HttpAnswer,
    HttpSource,
    Limits,
    ObjectNotFoundError,
    PythonSource,
    StorageError,
    TlsError,
    note_credential,
    open_store,
    send_request,
)
from streamer_stores.oci.logins import Login, login_of
from streamer_stores.oci.reference import DIGEST, Reference

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFESTS = (
    MANIFEST,
    INDEX,
    *(f"application/vnd.docker.distribution.manifest{kind}v2+json" for kind in (".", ".list.")),
)
LOGIN = "Run `docker login` or `podman login`, or give storage_options username and password"
TOKEN_S = 60.0  # the lifetime of a token whose service names none
EARLY_S = 5.0  # a token is exchanged this long before its end
_WORD = re.compile(r'([\w-]+)(?:(\s*=\s*)(?:"([^"]*)"|([^\s",]*)))?')  # of challenges: a kind, or a parameter


@dataclass(frozen=True)
class Blob:
    """What a manifest says of a blob."""

    digest: str
    size_bytes: int


class Registry:
    """See the module's docstring. Thread-safe."""

    def __init__(self, reference: Reference, options: Mapping[str, Any], limits: Limits) -> None:
        is_plain = options.get("plain_http", reference.is_local)
        self.server = f"{'http' if is_plain else 'https'}://{reference.api_host}"
        self._place, self._options, self._limits = reference, options, limits
        self._api = f"{self.server}/v2/{reference.repository}"
        self._lock = threading.RLock()
        self._login: Login | CredentialsError | None = None
        self._authorization: str | None = None
        self._expires_at_s = float("inf")
        self._challenge: dict[str, str] = {}  # of the latest Bearer challenge

    def send(
        self,
        path: str,
        uri: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> HttpAnswer:
        """Send a request to a path of the API, or to a URL that it named; return the answer, of any status."""
        url = urljoin(f"{self._api}/", path)
        for is_last in (False, True):
            of_login = self.authorization(uri) if url.startswith(f"{self.server}/") else {}
            answer = self._sent(url, uri, {**(headers or {}), **of_login}, method, body)
            challenge = answer.headers.get("www-authenticate", "")
            if answer.status != 401 or is_last or not challenge:
                break
            self._take(challenge, uri, of_login)
        return answer

    def refusal(self, answer: HttpAnswer, uri: str, what: str) -> StorageError:
        """Make the error for an unsuccessful answer; `what` does not exist after a status 404."""
        error = answer.error(uri)
        error.code = _code_in(answer.body) or error.code
        if answer.status == 404:
            error.message, error.hint = f"The registry has no {what}", "Check registry, repository and tag"
        elif answer.status in (401, 403):
            error.message, error.hint = "The registry refuses access", LOGIN
        return error

    def manifest(self, name: str, uri: str) -> bytes:
        """Request a manifest by tag or digest, and compare its digest."""
        answer = self.send(f"manifests/{name}", uri, headers={"Accept": ", ".join(MANIFESTS)})
        if answer.status != 200:
            raise self.refusal(answer, uri, f"manifest {name}" if DIGEST.fullmatch(name) else f"tag {name}")
        named = name if DIGEST.fullmatch(name) else answer.headers.get("docker-content-digest", "")
        algorithm = named.partition(":")[0] if DIGEST.fullmatch(named) else "sha256"
        digest = f"{algorithm}:{hashlib.new(algorithm, answer.body).hexdigest()}"
        if DIGEST.fullmatch(named) and digest != named:
            what = f"The manifest does not have the digest that names it: {digest} in place of {named}"
            raise ChecksumError(
                what, uri=uri, hint="Load again, and check the registry and the proxies on the way to it"
            )
        return answer.body

    def blob(self, blob: Blob, uri: str) -> HttpSource | PythonSource:
        """Return the source of a blob, at the end of the registry's redirects, which get no login."""
        url = f"{self._api}/blobs/{quote(blob.digest, safe=':')}"
        for is_last in (False, True):
            of_login = self.authorization(uri)
            options: dict[str, Any] = {"headers": of_login}
            if self._options.get("verify"):
                options["verify"] = self._options["verify"]
            store = open_store(url, options, limits=self._limits)
            try:
                info = store.info(store.root)
                source = store.source(info)
                break
            except CredentialsError as error:
                if is_last or not self._challenge:
                    raise self._named(error, uri) from error
                self._renew(uri, of_login)
            except StorageError as error:
                raise self._named(error, uri) from error
        if info.size_bytes != blob.size_bytes:
            what = f"The registry has a blob of {info.size_bytes} bytes, and its manifest names {blob.size_bytes}"
            raise StorageError(what, uri=uri, hint="Push the artifact again")
        return self._renewable(source, blob, uri, of_login)

    def _renewable(self, source: Any, blob: Blob, uri: str, of_login: Mapping[str, str]) -> HttpSource | PythonSource:
        if not isinstance(source, HttpSource):
            return source  # type: ignore[no-any-return]  # the registry has no ranges

        def refresh() -> HttpSource:
            if not source.is_redirect:
                self._renew(uri, of_login)
            renewed = self.blob(blob, uri)
            if not isinstance(renewed, HttpSource):
                raise StorageError("The registry no longer answers byte ranges", uri=uri, hint="Load again")
            return renewed

        own = None if self._expires_at_s == float("inf") else self._expires_at_s
        expires_at_s = source.expires_at_s if source.is_redirect else own
        # The digest in the URL is the version; the servers of one blob need not agree on its ETag.
        return replace(source, version=None, version_header=None, refresh=refresh, expires_at_s=expires_at_s)

    def authorization(self, uri: str) -> dict[str, str]:
        """Return the header of the login; a token that ends soon is exchanged first."""
        with self._lock:
            if self._challenge and time.time() > self._expires_at_s - EARLY_S:
                self._exchange(uri)
            return {"Authorization": self._authorization} if self._authorization else {}

    def _named(self, error: StorageError, uri: str) -> StorageError:
        error.uri = uri
        if isinstance(error, ObjectNotFoundError):
            error.message, error.hint = "The registry lacks a blob that its manifest names", "Push the artifact again"
        elif isinstance(error, CredentialsError):
            error.hint = LOGIN
        return error

    def _sent(
        self, url: str, uri: str, headers: Mapping[str, str], method: str, body: bytes | memoryview
    ) -> HttpAnswer:
        source = HttpSource(url, headers, ca_file=self._options.get("verify"))
        try:
            return send_request(source, uri, method, body, limits=self._limits)
        except TlsError as error:  # a hint of a URL's scheme means nothing here
            error.hint = (error.hint or "").replace("try http://", "give storage_options={'plain_http': True}")
            raise

    def _take(self, challenge: str, uri: str, used: Mapping[str, str]) -> None:
        """Log in as a 401 demands."""
        with self._lock:
            challenges, login = _challenges_in(challenge), self._found_login()
            if "bearer" in challenges:
                asked = challenges["bearer"]
                has_changed = asked.get("scope") != self._challenge.get("scope")
                self._challenge = asked
                if has_changed or used.get("Authorization") == self._authorization:
                    self._exchange(uri)  # unless another thread has done so meanwhile
            elif "basic" in challenges:
                if login.basic is None or used.get("Authorization") == login.basic:
                    raise CredentialsError("The registry wants a login", uri=uri, status=401, hint=LOGIN)
                self._authorization = login.basic
            else:
                raise CredentialsError("The registry wants a login of a kind that is unknown here", uri=uri, status=401)

    def _renew(self, uri: str, used: Mapping[str, str]) -> None:
        """Exchange the token that was refused, unless another thread has done so meanwhile."""
        with self._lock:
            if self._challenge and used.get("Authorization") == self._authorization:
                self._exchange(uri)

    def _found_login(self) -> Login:
        if self._login is None:
            try:
                self._login = login_of(self._place, self._options)
            except CredentialsError as error:  # a helper that does not answer is waited for once
                self._login = error
        if isinstance(self._login, CredentialsError):
            raise self._login
        return self._login

    def _exchange(self, uri: str) -> None:
        """Get a token from the service that the registry named."""
        login = self._found_login()
        if login.registry_token:
            if self._authorization is not None:
                raise CredentialsError("The registry refuses the token", uri=uri, status=401, hint=LOGIN)
            self._authorization = f"Bearer {login.registry_token}"
            return
        realm = self._challenge.get("realm", "")
        is_safe = urlsplit(realm).scheme == "https" or (self.server.startswith("http:") and realm.startswith("http:"))
        if not is_safe or "@" in urlsplit(realm).netloc:
            what = "The registry names a token service that is not to be trusted with a login"
            raise CredentialsError(what, uri=uri, status=401, hint="It must be an https:// URL, without a user")
        asked = {name: self._challenge[name] for name in ("service", "scope") if self._challenge.get(name)}
        began_s = time.time()
        if login.identity_token:
            form = {
                **asked,
                "grant_type": "refresh_token",
                "client_id": "streamer",
                "refresh_token": login.identity_token,
            }
            of_form = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self._sent(realm, uri, of_form, "POST", urlencode(form).encode())
        else:
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(asked)}"
            answer = self._sent(url, uri, {"Authorization": login.basic} if login.basic else {}, "GET", b"")
        if answer.status != 200:
            raise self.refusal(answer, uri, "token service at the URL that it names")
        token, lifetime_s = _token_in(answer.body, uri)
        note_credential(token)
        self._authorization, self._expires_at_s = f"Bearer {token}", began_s + lifetime_s


def _challenges_in(header: str) -> dict[str, dict[str, str]]:
    """Parse the kinds of logins that a registry takes, with their parameters."""
    found: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for name, mark, quoted, plain in _WORD.findall(header):
        if mark:
            parameters[name.lower()] = quoted or plain
        else:
            parameters = found.setdefault(name.lower(), {})
    return found


def _token_in(body: bytes, uri: str) -> tuple[str, float]:
    try:
        document = json.loads(body)
        token = document.get("token") or document["access_token"]
        lifetime_s = float(document.get("expires_in") or TOKEN_S)
    except (ValueError, KeyError, TypeError, AttributeError):
        token, lifetime_s = None, 0.0
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        raise CredentialsError("The answer of the registry's token service is malformed", uri=uri, hint=LOGIN)
    return token, max(lifetime_s, 2 * EARLY_S)


def _code_in(body: bytes) -> str | None:
    """Return the code of the first error in an answer of the API."""
    try:
        code = json.loads(body)["errors"][0]["code"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return code if isinstance(code, str) and re.fullmatch(r"[A-Z_]{1,40}", code) else None
