"""The logins that need a library: adlfs and azure-identity find them.

adlfs only checks whether a setting is None. A blank ``AZURE_STORAGE_CONNECTION_STRING`` is not None: adlfs would use it
as a connection string without an account, and it would hide the login of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adlfs import AzureBlobFileSystem

from streamer.backends.fsspec.instances import shared
from streamer.backends.metadata_servers import ask_azure_directly
from streamer.core.errors import OptionError
from streamer.core.secrets.environment import is_blank


class _Setting:
    """An attribute that is None if it is set to a blank text."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return None if instance is None else vars(instance).get(self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = None if is_blank(value) else value


class AzureFileSystem(AzureBlobFileSystem):  # type: ignore[misc]  # adlfs has no types
    """adlfs's file system. The settings below are those that adlfs also reads from the environment."""

    account_key = _Setting()
    account_name = _Setting()
    client_id = _Setting()
    client_secret = _Setting()
    connection_string = _Setting()
    sas_token = _Setting()
    tenant_id = _Setting()


def login_of_adlfs(user: object, options: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the URL and the credential that adlfs finds; its file system is kept as long as `user`."""
    try:
        client: Any = shared(user, AzureFileSystem, options, _close).service_client
    except Exception as error:
        raise OptionError(
            f"adlfs refuses the storage options: {type(error).__name__}",
            hint="Check connection_string, or account_name and one of account_key, sas_token and credential",
        ) from None  # the text of the exception may repeat the options
    if options.get("credential") is None and hasattr(client.credential, "get_token"):
        ask_azure_directly(client.credential)
    return str(client.url), client.credential


async def _close(fs: AzureBlobFileSystem) -> None:
    await fs.service_client.close()
    if fs.storage_options.get("credential") is None and hasattr(fs.credential, "get_token"):  # adlfs made it
        await fs.credential.close()
        fs.sync_credential.close()
