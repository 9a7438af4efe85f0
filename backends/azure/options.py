"""Completes the arguments of adlfs from the URL, fsspec's configuration and the environment. Pure.

Guarantees: no option of the user is overridden. URL and arguments win over ``AZURE_STORAGE_*``; in adlfs a connection
string of the environment wins. Refuses unverified TLS, and contradictions between URL and options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from streamer.backends.azure.urls import AzureUrl, check_host, named_by_connection_string
from streamer.backends.blob_urls import CREDENTIAL_OPTIONS
from streamer.backends.client.option_checks import ANY_NAME, CA_FILE, NUMBER, TEXT, Kinds, check_types
from streamer.backends.fsspec_settings import configured_options, names_of_arguments
from streamer.backends.option_names import OF_FSSPEC, check_option_names
from streamer.core.errors import OptionError
from streamer.core.quoting import quoted
from streamer.core.secrets.environment import blank_variables

PUBLIC_CLOUD = "blob.core.windows.net"
ACCOUNT_HINT = (
    "Give storage_options={'account_name': …}, AZURE_STORAGE_ACCOUNT_NAME, a connection string, "
    "or abfss://container@account.dfs.core.windows.net/path"
)

_ACCOUNT_NAME = re.compile(r"[A-Za-z0-9-]{1,63}")  # one label of a host's name

_KINDS: Kinds = {
    **dict.fromkeys(("account_host", "account_key", "account_name", "connection_string", "sas_token"), TEXT),
    **dict.fromkeys(("client_id", "client_secret", "tenant_id"), TEXT),
    **dict.fromkeys(("connection_timeout", "read_timeout", "retry_total", "timeout"), NUMBER),
    "connection_verify": CA_FILE,
    "proxies": {ANY_NAME: TEXT},
}


# The options that this package reads, and those of the Azure SDK that it has; others are checked by adlfs's signature.
_NAMES = frozenset(_KINDS) | {"anon", "credential", "location_mode"}


class _Schemes:
    """What fsspec's configuration looks at in a class."""

    protocol = ("abfs", "az", "abfss")


def _check_names(options: Mapping[str, Any]) -> None:
    names = _NAMES
    if options.keys() - _NAMES - OF_FSSPEC:
        from adlfs import AzureBlobFileSystem  # noqa: PLC0415 (the import takes a second)

        names = _NAMES | names_of_arguments(AzureBlobFileSystem)
    check_option_names("az://", options, names)


def filled_options(url: AzureUrl, storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Complete the arguments of `AzureBlobFileSystem`.

    A plain ``https://`` URL without any credentials is read anonymously; ``anon=False`` logs in instead.
    """
    _check_names(storage_options)
    options = configured_options(_Schemes, storage_options)
    check_types(options, _KINDS)
    _refuse(options)
    check_host(url, options, environment)
    _check_account_name(options.get("account_name") or environment.get("AZURE_STORAGE_ACCOUNT_NAME"))
    named = {name: options.get(name) for name in ("account_name", "account_host")}
    _fill_account(options, url)
    if not _has_credentials(options, environment):
        options["anon"] = url.is_https  # also passed if False: without it, older adlfs sends anonymous requests
    _fill_blanks(options)
    connection = _connection_string(options, url, environment)
    if connection is not None:
        options["connection_string"] = connection
    else:
        _check_connection_string(named, options, environment)
    return options


def _fill_blanks(options: dict[str, Any]) -> None:
    """Set the options that adlfs and its login would read from blank variables. Old adlfs reads blank as anonymous."""
    if options.get("anon") is None and blank_variables(["AZURE_STORAGE_ANON"]):
        options["anon"] = False
    if blank_variables(["AZURE_AUTHORITY_HOST"]):
        options["authority"] = "login.microsoftonline.com"


def _connection_string(options: Mapping[str, Any], url: AzureUrl, environment: Mapping[str, str]) -> str | None:
    """Return a connection string with host and credential; None if adlfs finds them itself."""
    if url.sas and options.get("connection_string"):
        raise OptionError("The URL holds a SAS, the options a connection string", hint="Give one of them")
    is_elsewhere = bool(options.get("connection_string") or environment.get("AZURE_STORAGE_CONNECTION_STRING"))
    account = options.get("account_name") or environment.get("AZURE_STORAGE_ACCOUNT_NAME")
    credential = _secret(options, url, environment, account)
    if options.get("connection_string") or (credential is None and is_elsewhere):
        return None
    host = options.get("account_host") or (f"{account}.{PUBLIC_CLOUD}" if account else None)
    if host is None:
        raise OptionError("No storage account is named", hint=ACCOUNT_HINT)
    return None if credential is None else f"BlobEndpoint=https://{host}{credential}"


def _check_connection_string(
    named: Mapping[str, Any], options: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Refuse an account name that is not the account of the connection string: adlfs would read the latter."""
    account, host = named_by_connection_string(options, environment)
    for name, used in (("account_name", account), ("account_host", host)):
        given = str(named[name] or "").partition("/")[0].lower()
        if given and used and given != used.lower():
            raise OptionError(
                f"{name} is {quoted(given)}, and the connection string names {quoted(used)}",
                hint="Leave out connection_string and AZURE_STORAGE_CONNECTION_STRING, or give the credential of"
                f" {quoted(given)}, too",
            )


def _secret(
    options: Mapping[str, Any], url: AzureUrl, environment: Mapping[str, str], account: str | None
) -> str | None:
    """Return the credential for a connection string: empty for anonymous use, None for a token or no credential."""
    key, sas = options.get("account_key"), options.get("sas_token")
    if url.sas:
        return f";SharedAccessSignature={url.sas}"
    if options.get("credential") is not None or options.get("client_id"):
        return None
    if not key and not sas and not environment.get("AZURE_STORAGE_CONNECTION_STRING"):
        key, sas = (environment.get(f"AZURE_STORAGE_{name}") for name in ("ACCOUNT_KEY", "SAS_TOKEN"))
    if key:
        return f";AccountName={account};AccountKey={key}"  # adlfs itself only uses a key for hosts `*.blob.core.*`
    if sas:
        return f";SharedAccessSignature={str(sas).lstrip('?')}"
    return "" if options.get("anon") and not environment.get("AZURE_STORAGE_SAS_TOKEN") else None


def _refuse(options: Mapping[str, Any]) -> None:
    if options.get("connection_verify") is False:
        raise OptionError(
            "connection_verify=False is refused: TLS certificates are always verified",
            hint="Name the CA instead: storage_options={'connection_verify': '/path/ca.pem'}",
        )
    if options.get("location_mode") not in (None, "primary"):
        raise OptionError(
            "location_mode can only be 'primary': each request goes to the account's first location",
            hint="To read the second, name it: account_host='ACCOUNT-secondary.blob.core.windows.net'",
        )


def _check_account_name(name: str | None) -> None:
    """Refuse an invalid account name: adlfs puts the name before Azure's domain to make the host."""
    if name and not _ACCOUNT_NAME.fullmatch(name):
        raise OptionError(
            f"{quoted(name)} is no name of a storage account",
            hint="A name has only letters and digits. If the host is not Azure's, name it as account_host",
        )


def _fill_account(options: dict[str, Any], url: AzureUrl) -> None:
    named = options.get("account_name")
    if url.account and named and url.account.removesuffix("-secondary") != named:
        raise OptionError(
            f"The URL names account {url.account!r}, but account_name names another account", uri=url.uri_of(url.name)
        )
    if url.account and not named:
        options["account_name"] = url.account
    if url.host and not options.get("account_host"):
        options["account_host"] = url.host


def _has_credentials(options: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    return any(
        options.get(name) is not None or environment.get(f"AZURE_STORAGE_{name.upper()}") for name in CREDENTIAL_OPTIONS
    )
