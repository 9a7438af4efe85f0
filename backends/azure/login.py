"""Where an Azure account is, and what its requests are signed with; adlfs is asked only for logins that need a library.

A connection string is read as the Azure SDK reads it. Signatures are those of the account's key: of a request, and of a
URL that reads one blob.
https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
https://learn.microsoft.com/rest/api/storageservices/create-service-sas
"""

from __future__ import annotations

import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from streamer.backends.azure.options import PUBLIC_CLOUD
from streamer.core.errors import OptionError

VERSION = "2021-12-02"  # of the protocol; without it Azure answers anonymous requests by that of 2009
_DEVELOPMENT = ("http://127.0.0.1:10000/devstoreaccount1", "devstoreaccount1")
_DEVELOPMENT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public
_SIGNED = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)


@dataclass(frozen=True)
class Login:
    """An account and at most one of key, SAS and credential."""

    endpoint: str  # URL of the account, without a SAS
    account: str | None = None  # the account of the key, or else the account that the host names, or None
    key: str | None = field(default=None, repr=False)
    sas: str = field(default="", repr=False)
    credential: Any = field(default=None, repr=False)  # gives tokens (`get_token`) or a SAS (`signature`)

    @property
    def has_token(self) -> bool:
        """Whether requests need a token."""
        return hasattr(self.credential, "get_token")

    @property
    def current_sas(self) -> str:
        """The SAS; the owner of an `AzureSasCredential` may update it."""
        return self.sas or str(getattr(self.credential, "signature", "")).lstrip("?")

    def signature(self, text: str) -> str:
        """Sign a text with the account's key; raises `ValueError` if the key is not base64."""
        return b64encode(hmac.digest(b64decode(self.key or ""), text.encode(), "sha256")).decode()

    def authorization(self, method: str, url: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
        """Return the header that authorizes a request; raises as `signature`."""
        named = {name.lower(): value for name, value in headers.items()}
        if named.get("content-length") == "0":
            del named["content-length"]
        lines = [method, *(named.get(name, "") for name in _SIGNED)]
        lines += [f"{name}:{named[name]}" for name in sorted(named) if name.startswith("x-ms-")]
        lines.append(f"/{self.account}{urlsplit(url).path}")
        lines += [f"{name}:{query[name]}" for name in sorted(query)]
        return f"SharedKey {self.account}:{self.signature(chr(10).join(lines))}"

    def signed_query(self, path: str, begin_s: float, end_s: float) -> str:
        """Return the SAS that reads the blob `path` (``container/name``); raises as `signature`."""
        begin, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each)) for each in (begin_s, end_s))
        protocol = "https" if self.endpoint.startswith("https:") else ""
        lines = ["r", begin, end, f"/blob/{self.account}/{path}", "", "", protocol, VERSION, "b", *[""] * 7]
        named = {"st": begin, "se": end, "sp": "r", "spr": protocol, "sv": VERSION, "sr": "b"}
        named["sig"] = self.signature("\n".join(lines))
        return urlencode({name: value for name, value in named.items() if value})


def login_of(user: object, options: Mapping[str, Any], environment: Mapping[str, str]) -> Login:
    """Return the login that the completed options name; adlfs's file system lives as long as `user`."""
    connection = options.get("connection_string") or environment.get("AZURE_STORAGE_CONNECTION_STRING")
    if connection:
        return _of_connection_string(str(connection))
    credential, account = options.get("credential"), options.get("account_name")
    host = options.get("account_host") or f"{account or environment.get('AZURE_STORAGE_ACCOUNT_NAME')}.{PUBLIC_CLOUD}"
    if hasattr(credential, "get_token"):
        return Login(*_place(f"https://{host}"), credential=credential)
    from streamer.backends.azure.adlfs_login import login_of_adlfs  # noqa: PLC0415 (with adlfs it takes a second)

    url, found = login_of_adlfs(user, options)
    endpoint, named = _place(url)
    key = getattr(found, "account_key", None)
    if key is not None:
        return Login(endpoint, found.account_name, key)
    return Login(endpoint, named, sas=urlsplit(url).query, credential=found)


def _of_connection_string(text: str) -> Login:
    pairs = [part.split("=", 1) for part in text.rstrip(";").split(";")]
    settings = {pair[0].upper(): pair[1] for pair in pairs if len(pair) == 2}
    if settings.get("USEDEVELOPMENTSTORAGE") == "true":
        return Login(*_DEVELOPMENT, _DEVELOPMENT_KEY)
    account, key, url = settings.get("ACCOUNTNAME"), settings.get("ACCOUNTKEY"), settings.get("BLOBENDPOINT")
    if len(settings) < len({pair[0].upper() for pair in pairs}) or not (url or account):
        raise OptionError(
            "The connection string is malformed, or names no account",
            hint="Check connection_string, or account_name and one of account_key, sas_token and credential",
        )
    suffix = settings.get("ENDPOINTSUFFIX")
    protocol = settings.get("DEFAULTENDPOINTSPROTOCOL", "https") if suffix else "https"
    url = url or f"{protocol}://{account}.blob.{suffix or 'core.windows.net'}"
    endpoint, named = _place(url if "://" in url else f"https://{url}")
    if account and key:
        return Login(endpoint, account, key)
    return Login(endpoint, named, sas=(settings.get("SHAREDACCESSSIGNATURE") or urlsplit(url).query).lstrip("?"))


def _place(url: str) -> tuple[str, str | None]:
    """Return the endpoint of a URL, and the account that it names."""
    endpoint = url.partition("?")[0].rstrip("/")
    parts = urlsplit(endpoint)
    account, dot, _ = parts.netloc.partition(".blob.")
    if dot:
        return endpoint, account.removesuffix("-secondary")
    is_emulator = parts.hostname in ("localhost", "127.0.0.1")  # its URLs name the account in their path
    return endpoint, (parts.path.strip("/") or None) if is_emulator else None
