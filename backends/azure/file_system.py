"""An adlfs file system for which a blank variable of the environment is unset.

adlfs only checks whether a setting is None. A blank ``AZURE_STORAGE_CONNECTION_STRING`` is not None: adlfs would use it
as a connection string without an account, and it would hide the login of the machine.
"""

from __future__ import annotations

from typing import Any

from adlfs import AzureBlobFileSystem

from streamer.core.secrets.environment import is_blank

__all__ = ["AzureFileSystem"]


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
